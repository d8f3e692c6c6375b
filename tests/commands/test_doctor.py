"""What the preflight tells of an experiment: the data with their counts, a prompt with its ids, and
what is wrong.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from orchestrator.checks import catalog
from orchestrator.checks import machine as of_machine
from orchestrator.checks.check import Found
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.units import expand
from tests.sweeps import ROOT, TINY_SETUP, trb_here, write_experiment

GRADER = of_machine.grader  # starts a process that imports an algebra system: one test does


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_machine, "grader", lambda runtime: Found("ok", "not asked here"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("TRB_DATA_DIR", raising=False)


def experiment(folder: Path, **changes: Any) -> Path:
    path = write_experiment(folder, {"vanilla": {}})
    (folder / "setups" / "tiny.yaml").write_text(yaml.safe_dump(TINY_SETUP | changes))
    return path


def doctor(capsys: pytest.CaptureFixture[str], path: Path, *arguments: str) -> tuple[int, str, str]:
    return trb_here(capsys, "doctor", path, "--runs", path.parent / "runs", *arguments)


def write_thoughts(folder: Path) -> dict[str, Any]:
    """40 problems of three rows, every fourth of them undecided, and a row of another domain."""
    rows = [{"domain": "code", "source": "x", "conversations": []}]
    for turn in range(3):
        for i in range(40):
            answer = f"\\boxed{{{turn if i % 4 == 0 else 7}}}"
            turns = [{"from": "human", "value": f"{i}+1=?"}, {"from": "gpt", "value": answer}]
            rows.append({"domain": "math", "source": "x", "conversations": turns})
    path = folder / "thoughts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "path": str(path),
        "revision": hashlib.sha256(path.read_bytes()).hexdigest(),
        "source": "openthoughts",
    }


def test_the_embedded_world_needs_no_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = doctor(capsys, experiment(tmp_path))
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert "ok   tiny benchmarks: arithmetic_short (200 problems); as declared" in lines
    assert "warn tiny models: not made yet; the first submit makes them" in lines
    assert (
        "ok   tiny training data: 40 prompts in one order for all methods; 0 too long were passed over"
        in lines
    )
    assert "     golds: given 40 (100.0%), none 0 (0.0%)" in lines
    shown = lines.index("ok   tiny prompt: arithmetic_short arithmetic/short/0, 6 tokens")
    assert lines[shown + 1 : shown + 4] == ["     │ 8+2=?", "     │ ", "     8 10 2 11 12 18"]


def test_a_tracker_takes_the_place_of_the_check_of_wandb(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = experiment(tmp_path)
    for tracker, verdict in (("tensorboard", "ok"), ("nowhere:board", "fail")):
        _, out, _ = doctor(capsys, path, f"runtime.tracker={tracker}", "--json")
        checks = {check["name"]: check["verdict"] for check in json.loads(out)["checks"]}
        assert checks["tracker"] == verdict
        assert "wandb" not in checks


def test_counts_of_openthoughts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_thoughts(tmp_path)
    path = experiment(tmp_path, data=data)
    first, again = (doctor(capsys, path) for _ in range(2))
    assert first[0] == again[0] == 0
    assert first[2] == f"trb: reading all rows of {data['path']} once; this takes minutes\n"
    assert again[2] == ""
    for _, out, _ in (first, again):
        lines = out.splitlines()
        assert "     the source: 121 rows, 1 not math, 0 malformed, 80 repeats" in lines
        assert "     golds: majority 30 (75.0%), tied 10 (25.0%), no box 0 (0.0%)" in lines


def test_golds_that_differ_and_copies_of_a_benchmark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"problem": f"{i}+1=?", "answer": i + 1} for i in range(40)]
    wrong = [{"problem": "7+1=?", "answer": 9}]
    for name, written in (("train", rows + wrong), ("mine", rows[:2])):
        text = "".join(json.dumps(row) + "\n" for row in written)
        (tmp_path / f"{name}.jsonl").write_text(text)
    path = experiment(tmp_path, data={"source": "jsonl", "files": [{"file": "train.jsonl"}]})
    mine = f"evaluation.benchmarks.mine={{path: {tmp_path / 'mine.jsonl'}, n: 1, title: Mine}}"
    code, out, _ = doctor(capsys, path, f"data_dir={tmp_path}", "training.steps=10", mine)
    assert code == 0
    assert "warn tiny training data: 40 prompts" in out
    assert 'differing 1 (2.5%; "7+1=?": 8, 9)' in out
    assert re.search(
        r'2 of 40 training problems \(2 of the 40 used\) stand in Mine, e\.g\. "[01]', out
    )


def test_data_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_thoughts(tmp_path) | {"revision": "0" * 64}
    benchmarks = {"max_response_tokens": 24, "benchmarks": {"amc23": {"n": 1}}}
    code, out, _ = doctor(capsys, experiment(tmp_path, data=data, evaluation=benchmarks))
    assert code == 1
    failed = [line for line in out.splitlines() if line.startswith("fail")]
    assert [line.split(": ")[0] for line in failed] == [
        "fail tiny benchmarks",
        "fail tiny prompt",
        "fail tiny training data",
    ]
    assert (
        "data/eval/amc23.jsonl: no such file: expected a data_dir that holds it (`trb data fetch "
        in failed[0]
    )
    assert failed[1] == "fail tiny prompt: as tiny benchmarks", "each cause once"
    assert f"{data['path']}: sha256" in failed[2]


def test_findings_as_json_prompts_before_the_training_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_machine, "grader", GRADER)
    code, out, _ = doctor(capsys, experiment(tmp_path), "--json")
    checks = {check["name"]: check for check in json.loads(out)["checks"]}
    assert code == 0
    assert {"devices", "memory", "gradient", "tiny benchmarks"} <= set(checks)
    assert checks["grader"]["detail"] == "0.5 is one half and 0.25 is not"
    assert checks["tiny prompt"]["detail"].splitlines()[-1] == "8 10 2 11 12 18"
    assert list(checks)[-4:] == [
        "tiny prompt",
        "tiny template",
        "tiny endings",
        "tiny training data",
    ]
    devices = checks["devices"]["detail"]
    assert "1 GPUs" not in devices
    assert "1 CPU cores" not in devices


# --- GPUs ---


LARGE = {"layers": 28, "hidden": 1024, "heads": 16, "kv_heads": 8, "head_dim": 128, "ffn": 3072}


def test_a_pair_that_needs_a_gpu_asks_for_one(tmp_path: Path) -> None:
    model = TINY_SETUP["teacher"] | {"shape": LARGE}
    path = experiment(tmp_path, teacher=model, student=TINY_SETUP["student"] | {"shape": LARGE})
    loaded = load_experiment(path)
    assert loaded.runtime.placement.gpus == 1
    assert {unit.placement.gpus for unit in expand(loaded)} == {1}
    assert load_experiment(path, ["runtime.placement.gpus=0"]).runtime.placement.gpus == 0
    assert (
        load_experiment(path, ["methods.vanilla.placement=colocated"]).placements["vanilla"].gpus
        == 1
    )
    assert load_experiment(experiment(tmp_path)).runtime.placement.gpus == 0


def test_the_doctor_says_so_where_it_is_told_not_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = experiment(
        tmp_path, **{role: TINY_SETUP[role] | {"shape": LARGE} for role in ("student", "teacher")}
    )
    _, out, _ = doctor(capsys, path, "runtime.placement.gpus=0")
    assert (
        "fail placement: tiny on CPUs would take years: runtime.placement.gpus=1"
        in out.splitlines()
    )


@pytest.mark.parametrize("sampler", ["torch", "sglang"])
def test_memory_of_a_gpu_is_what_the_engines_will_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sampler: str
) -> None:
    """By hand, GiB: weights 1.1 and 7.5, learner 6.7, gradient 2.2; KV of a token 112 KiB, of both
    models 256 KiB.
    """
    _, out, _ = doctor(
        capsys,
        ROOT / "experiments" / "paper.yaml",
        f"engine.sampler={sampler}",
        "setups=[qwen3-0.6b]",
    )
    lines = out.splitlines()
    first = (
        "ok   qwen3-0.6b GPU memory: 79.1 GiB (H100-80GB, since none is here), of which on each GPU"
    )
    budgets = {}
    for line in lines[lines.index(first) + 1 :][:5]:
        found = re.fullmatch(r" {5}(\w+) ([\d.]+): (.*)", line)
        assert found is not None, line
        budgets[found[1]] = found[3]
        assert float(found[2]) <= 79.1
    assert list(budgets) == ["decoding", "blending", "scoring", "learning", "evaluating"]
    for situation, kib in (("decoding", 112), ("blending", 256), ("evaluating", 112)):
        found = re.search(r"KV cache ([\d.]+),.* in a cache of ([\d,]+) tokens", budgets[situation])
        assert found is not None
        assert float(found[1]) == pytest.approx(
            int(found[2].replace(",", "")) * kib / 2**20, abs=0.06
        )
    for part in ("teacher 7.5", "learner 6.7", "gradient 2.2"):
        assert part in budgets["learning"]
    assert "weights 1.1" in budgets["decoding"]
    assert "weights 8.6" in budgets["blending"]


@pytest.mark.parametrize(("asked", "verdict"), [("64", "fail"), ("4", "ok"), ("", "ok")])
def test_cores_of_a_task_of_slurm_are_those_that_it_is_bound_to(
    asked: str, verdict: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(of_machine.os, "sched_getaffinity", lambda pid: {3, 7, 8, 9})
    monkeypatch.setattr(of_machine.os, "cpu_count", lambda: 128)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", asked)
    checks = machine(capsys)
    assert checks["cores"]["verdict"] == verdict
    if asked == "64":
        assert "bound to 4 cores, while SLURM_CPUS_PER_TASK=64" in checks["cores"]["detail"]
        assert checks["cores"]["detail"].endswith("srun --cpus-per-task=64 --cpu-bind=none")
    else:
        assert checks["cores"]["detail"].startswith("bound to 4 of 128; `ray start` counts all")


def test_variables_of_torchs_allocator_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    assert "allocator" not in machine(capsys)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:512")
    assert machine(capsys)["allocator"]["detail"] == (
        "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:512: kept for trainers; "
        "SGLang's engines start without"
    )


def machine(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The checks of `trb doctor` without an experiment."""
    _, out, _ = trb_here(capsys, "doctor", "--json")
    return {check["name"]: check for check in json.loads(out)["checks"]}


@pytest.mark.parametrize(
    ("free_gib", "verdict"),
    [(1.5, "ok"), (0.0625, "fail")],  # the latter is a container of docker's
)
def test_a_container_without_shared_memory_is_named(
    free_gib: float, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "has_driver", lambda: True)
    blocks = SimpleNamespace(f_frsize=2**20, f_blocks=2**20, f_bfree=0, f_bavail=1024 * free_gib)
    monkeypatch.setattr(of_machine.os, "statvfs", lambda path: blocks)
    experiment = load_experiment(ROOT / "experiments" / "paper.yaml", ["setups=[qwen3-0.6b]"])
    [check] = [
        each for each in catalog.experiment_checks(experiment) if each.name == "shared memory"
    ]
    found = check.run(experiment)
    assert found.verdict == verdict, found
    assert ("docker run --shm-size=" in found.detail) is (verdict == "fail")
