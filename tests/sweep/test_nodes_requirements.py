"""What a machine must have: told on one, asked on another that is played by changing what this one
has.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants

from orchestrator.config import BenchmarkRun, Data, DataFile
from orchestrator.engines.interface import ModelFolder
from orchestrator.models.locate import download, on_this_machine
from orchestrator.records.files import file_sha256
from orchestrator.selection.study import Study
from orchestrator.sweep.nodes import (
    Lack,
    Requirement,
    answer_of_node,
    lacking,
    requirements,
    signed,
)
from tests.fake_runs import quickstart

COMMIT = "0f3a" * 10


def needed_by(tmp_path: Path) -> list[Requirement]:
    """Of a study with models in a folder, prompts in the data folder and a benchmark by its path;
    all is there.
    """
    for name in ("runs/.locks", "student", "teacher", "data"):
        (tmp_path / name).mkdir(parents=True)
    for file in (
        "student/model.safetensors",
        "teacher/model.safetensors",
        "data/prompts.jsonl",
        "own.jsonl",
    ):
        (tmp_path / file).write_text("12345")
    sign = tmp_path / "runs" / ".locks" / "0f3a.sweep"
    sign.touch()
    experiment, units = quickstart()
    (name, setup), *_ = experiment.setups.items()
    prompts = DataFile("prompts.jsonl", file_sha256(tmp_path / "data" / "prompts.jsonl"))
    own = {"own": BenchmarkRun(path=str(tmp_path / "own.jsonl"), revision="0" * 64, problems=1)}
    setup = replace(
        setup,
        data=Data(source="jsonl", files=[prompts]),
        evaluation=replace(setup.evaluation, benchmarks=setup.evaluation.benchmarks | own),
    )
    experiment = replace(experiment, setups={name: setup}, data_dir=str(tmp_path / "data"))
    pair = (ModelFolder(str(tmp_path / "student")), ModelFolder(str(tmp_path / "teacher")))
    return requirements(Study(experiment, units, tmp_path / "runs"), {name: pair}, sign)


def test_a_machine_that_has_everything(tmp_path: Path) -> None:
    needed = needed_by(tmp_path)
    assert lacking(needed) is None
    assert len(needed) == 5


@pytest.mark.parametrize(
    ("file", "key", "reason"),
    [
        ("runs/.locks/0f3a.sweep", "--runs", "another folder, or none"),
        ("teacher/model.safetensors", "arithmetic.teacher.path", "no model.safetensors there"),
        ("data/prompts.jsonl", "data_dir", "no prompts.jsonl there"),
        ("own.jsonl", "arithmetic.evaluation.benchmarks.own.path", "no own.jsonl there"),
    ],
)
def test_what_is_missing_is_named_with_its_key_and_the_node(
    file: str, key: str, reason: str, tmp_path: Path
) -> None:
    needed = needed_by(tmp_path)
    (tmp_path / file).unlink()
    lack = lacking(needed)
    assert lack is not None
    line = str(lack.on("gpu-3"))
    assert line.startswith(f"{key}: '")
    assert line.endswith(f": expected the same on every node; gpu-3: {reason}")


def test_another_model_of_the_same_name(tmp_path: Path) -> None:
    needed = needed_by(tmp_path)
    (tmp_path / "student" / "model.safetensors").write_text("123456")
    lack = lacking(needed)
    assert lack is not None
    assert lack.reason == "model.safetensors has 6 bytes, not 5"


def test_a_node_that_cannot_answer() -> None:
    line = str(Lack(None, "no answer within 120 s").on("gpu-3"))
    assert (
        line
        == "--address: 'gpu-3': expected a node with this program and its packages (no answer within 120 s)"
    )


def test_a_runs_folder_is_known_by_a_new_sign_each_time(tmp_path: Path) -> None:
    with signed(tmp_path) as first, signed(tmp_path) as second:
        assert first.is_file()
        assert second.is_file()
        assert first != second
    (tmp_path / ".locks" / "old.sweep").write_text("of a sweep that was killed")
    with signed(tmp_path) as third:
        assert list((tmp_path / ".locks").iterdir()) == [third]
    assert not list((tmp_path / ".locks").iterdir())


def test_a_model_of_a_hub_lies_where_each_machine_has_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def move_to(machine: str) -> None:
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / machine))

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for machine in ("here", "there"):
        (tmp_path / machine / "models--tiny--student" / "snapshots" / COMMIT).mkdir(parents=True)
    move_to("here")
    model = ModelFolder(download("tiny/student", COMMIT), hub=f"tiny/student@{COMMIT}")
    need = Requirement("tiny.student.path", model.hub, hub=model.hub)
    move_to("there")
    assert on_this_machine(model) == replace(model, path=model.path.replace("here", "there"))
    assert lacking([need]) is None
    shutil.rmtree(tmp_path / "there")
    lack = lacking([need])
    assert lack is not None
    assert lack.reason.startswith(
        "tiny/student@0f3a0f3a0f3a: not a local folder and not to be had from the hub ("
    )


def test_a_node_where_ray_counts_more_cores_than_processes_may_use_is_named_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`ray start` counts the machine's cores where a job of Slurm is bound to a few of them."""
    from orchestrator.sweep import nodes

    place = {"NodeManagerHostname": "gpu-3", "NodeManagerAddress": "10.0.0.7"}
    rows = []
    for node_id, cpus in (("a" * 56, 64.0), ("b" * 56, 8.0)):
        rows.append({"NodeID": node_id, "Alive": True, "Resources": {"CPU": cpus}, **place})
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr("orchestrator.cores._limits", list)
    asked = SimpleNamespace(remote=answer_of_node)
    remote = SimpleNamespace(options=lambda **_: asked)
    ray = SimpleNamespace(
        nodes=lambda: rows, remote=lambda function: remote, get=lambda answer, timeout: answer
    )
    monkeypatch.setattr(nodes, "ray", ray)
    said: list[str] = []
    usable = nodes.FitNodes([], said.append)
    usable.check()
    usable.check()
    [line] = said
    assert line.startswith("gpu-3 (10.0.0.7): Ray counts 64 CPUs, and its processes may use 8: ")
    assert usable.capacity()["CPU"] == 72, "it is told, and not refused"
