"""What the page of the first hour on GPUs quotes is what the program says: output, names of checks,
error messages.

Its links and commands are looked at with those of the other pages in `test_docs`, the output of its
sweep in `sweep/test_gpu_smoke`.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import io
import json
import multiprocessing
import re
import sysconfig
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch

from orchestrator.checks import engines, machine
from orchestrator.checks.catalog import gpu_checks
from orchestrator.checks.preflight import check_address
from orchestrator.commands.doctor import looks
from orchestrator.config import Runtime
from orchestrator.data.files import data_file
from orchestrator.data.sources import fetch
from orchestrator.engines import catalog
from orchestrator.engines import device as gpu
from orchestrator.engines.budget import budget
from orchestrator.engines.sglang import private, toolchain
from orchestrator.engines.sglang.process import EngineProcess, Settings
from orchestrator.engines.sglang.toolchain import attention_backend
from orchestrator.errors import EngineLost, UserError
from orchestrator.experiment.load import load_experiment, load_setup
from orchestrator.experiment.units import expand
from orchestrator.liveness.children import Child
from orchestrator.models.locate import download
from orchestrator.workers.canary import canary_ids
from tests.checks.benches import small_bench
from tests.sweeps import NO_MIRROR, ROOT, trb_here, trb_shows
from tests.test_docs import FIRST_HOUR
from tests.test_packaging import install

TEXT = FIRST_HOUR.read_text(encoding="utf-8")


def blocks() -> dict[str, list[str]]:
    """Command → the lines that the page says it prints."""
    found = re.findall(
        r"^<!-- prints: ([^\n]+) -->\n```\n(.*?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL
    )
    return {command: lines.splitlines() for command, lines in found}


def matches(quoted: str, printed: str) -> bool:
    """Whether `printed` holds a quotation, in which … stands for anything but the end of a line."""
    return re.search(".*".join(map(re.escape, quoted.split("…"))), printed) is not None


def quoted_errors() -> list[str]:
    """The messages in the first column of the page's table."""
    rows = re.findall(r"^\| (`.*?`) \|", TEXT, flags=re.MULTILINE)
    return [quoted.strip("`") for row in rows for quoted in row.split("<br>")]


# --- output ---


@pytest.mark.parametrize(
    "command", [command for command in blocks() if not command.startswith("trb submit")]
)
def test_commands_print_what_the_page_shows(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("TRB_DATA_DIR", "TRB_RUNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setattr(
        torch.cuda, "is_available", lambda: False
    )  # the page shows the plan's card, not this one's
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    # `trb doctor` ends with 1 where SGLang is not installed.
    _, printed, _ = trb_here(capsys, *command.split()[1:])
    assert [line for line in blocks()[command] if not matches(line, printed)] == [], printed


def test_the_checks_on_the_page_are_those_that_are_made() -> None:
    [listed] = re.findall(r"In their order\s+they\s+are (.*?)\. ", TEXT, flags=re.DOTALL)
    assert re.findall(r"`([a-z]+)`", listed) == [check.name for check in gpu_checks()]
    assert f"`{len(gpu_checks())} checks: " in TEXT


def test_the_numbers_to_look_at_first_are_those_of_the_doctors_table(tmp_path: Path) -> None:
    table = TEXT[TEXT.index("| look first at |") :].partition("\n\n")[0]
    rows = re.findall(r"^\| (.+) \| (.+) \| (.+) \|$", table, re.MULTILINE)
    found = looks(small_bench(tmp_path), [])
    assert [row[0] for row in rows[1:]] == [look.subject for look in found]
    for row, look in zip(rows[1:], found, strict=True):
        assert row[2] == "the same" or row[2].replace("`", "") == look.change


@pytest.mark.parametrize("page", ["README.md", "docs/first-hour-on-gpus.md"])
def test_the_first_sweeps_limit_is_not_below_its_plan(
    page: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sweep that stops at its limit is what a first user would not expect."""
    text = (ROOT / page).read_text(encoding="utf-8")
    [limit] = re.findall(r"trb submit experiments/paper-small.yaml .*--max-gpu-hours (\d+)", text)
    small = ROOT / "experiments" / "paper-small.yaml"
    plan = trb_shows(capsys, "plan", small, "--gpus", "8", "--json", "--runs", tmp_path / "runs")
    hours = json.loads(plan)["totals"]["gpu_hours"]["total"]
    assert float(limit) >= hours["high"]


def test_what_make_is_asked_for_is_there() -> None:
    targets = set(re.findall(r"\bmake ([a-z-]+)", TEXT))
    assert targets == {"setup", "setup-engines"}
    made = re.findall(
        r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert targets <= set(made)


# --- errors ---


def test_quoted_errors_are_those_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message of the table comes from the code that says it, and each code below has its row."""
    said: list[str] = []
    for each in (installing, starting, fetching, on_a_gpu, engine_at_work, placing):
        with monkeypatch.context() as patch:
            said += each(tmp_path, patch)
    unknown = [
        quoted
        for quoted in quoted_errors()
        if not any(matches(quoted, message) for message in said)
    ]
    assert unknown == []
    assert [
        message
        for message in said
        if not any(matches(quoted, message) for quoted in quoted_errors())
    ] == []


def refused(call: Callable[[], object], kind: type[Exception] = UserError) -> str:
    """What a call that must fail says."""
    with pytest.raises(kind) as error:
        call()
    return str(error.value)


def installing(folder: Path, patch: pytest.MonkeyPatch) -> list[str]:
    """An older system or driver, a driver that is not well, and a torch installed without one."""
    patch.setattr(machine, "driver_version", lambda: "550.127.08")
    patch.setattr(machine, "driver_cuda", lambda: "12.4")
    patch.setattr(torch.cuda, "device_count", lambda: 0)
    bench = replace(small_bench(folder), small=False)
    messages = [install.remark("auto", None, "550.127.08", "linux")]
    for cuda in ("13.0", None):
        patch.setattr(torch.version, "cuda", cuda)
        messages.append(machine.driver(bench).detail)
    patch.setattr(torch.version, "cuda", "13.0")
    patch.setattr(machine, "driver_cuda", lambda: "13.0")
    patch.setattr(machine, "initialised", lambda: 802)
    messages.append(machine.driver(bench).detail)
    patch.setattr(install.platform, "libc_ver", lambda: ("glibc", "2.28"))
    with redirect_stderr(io.StringIO()) as printed, pytest.raises(SystemExit):
        install.check_glibc()
    return [*messages, printed.getvalue()]


def starting(folder: Path, patch: pytest.MonkeyPatch) -> list[str]:
    """An engine that is not installed, and one without anything that compiles."""

    def no_distribution(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    patch.setattr(importlib.util, "find_spec", lambda name: None)
    messages = [refused(lambda: catalog.require("engine.sampler", "sglang"))]
    patch.setattr(importlib.metadata, "distribution", no_distribution)
    patch.setattr(sysconfig, "get_paths", lambda: {"include": str(folder)})
    (folder / "file").touch()
    lacking = toolchain.missing(
        {"PATH": str(folder), "SGLANG_CACHE_DIR": str(folder / "file" / "kernels")}, folder
    )
    return messages + [line for line in lacking if not line.startswith(("a C compiler", "ninja"))]


def fetching(folder: Path, patch: pytest.MonkeyPatch) -> list[str]:
    """A machine that reaches neither the hub nor the files' repositories."""

    def unreachable(*_: object, **__: object) -> None:
        raise OSError("Name or service not known")

    patch.setattr(huggingface_hub, "snapshot_download", unreachable)
    return [
        refused(lambda: download("Qwen/Qwen3-4B", "0" * 40)),
        refused(lambda: data_file("eval/math500.jsonl", str(folder))),
        refused(lambda: list(fetch(folder, ["math500"], NO_MIRROR))),
    ]


def on_a_gpu(folder: Path, patch: pytest.MonkeyPatch) -> list[str]:
    """A card that others hold or that is too small, a host without memory, two GPUs that cannot
    talk.
    """
    setup, holder = load_setup("gpu-smoke"), gpu.MemoryHolder(4711, "python", 70.0)
    bench = small_bench(folder)
    patch.setattr(machine, "available_gib", lambda: 0.0)
    patch.setattr(torch.cuda, "device_count", lambda: 2)
    ended = SimpleNamespace(start=lambda: None, join=lambda: None, exitcode=1)
    patch.setattr(
        multiprocessing, "get_context", lambda kind: SimpleNamespace(Process=lambda **_: ended)
    )
    for who, log_prob in ((engines.LEARNER, -1.0), (engines.SAMPLER, -2.0)):
        engines.write_canary(bench, who, [log_prob] * len(canary_ids(bench.setup)))
    patch.setenv("SLURM_CPUS_PER_TASK", "4096")
    patch.setattr(machine.os, "sched_getaffinity", lambda pid: {0})
    full = SimpleNamespace(f_frsize=1, f_blocks=2**26, f_bfree=0, f_bavail=0)
    patch.setattr(machine.os, "statvfs", lambda path: full)
    in_bfloat16 = replace(bench.setup, engine=replace(bench.setup.engine, dtype="bfloat16"))
    return [
        refused(
            lambda: gpu.wait_for_memory(60, "an SGLang engine", 0, lambda: 3.0, lambda: [holder]),
            EngineLost,
        ),
        refused(lambda: budget(setup, Runtime(), 12.0, "decoding")),
        refused(lambda: budget(setup, Runtime(), 12.0, "learning")),
        machine.cores(Runtime()).detail,
        machine.shared_memory(load_experiment(ROOT / "experiments" / "gpu-smoke.yaml")).detail,
        machine.offload(bench).detail,
        machine.collective(bench).detail,
        engines.same_weights(replace(bench, setup=in_bfloat16)).detail,
    ]


def engine_at_work(folder: Path, patch: pytest.MonkeyPatch) -> list[str]:
    """An engine that dies, falls silent, or makes another cache; kernels that cannot be."""

    asked = Settings("model", "bfloat16", "student", 62, 60, 61, 64, True, None, 1000, 4, False)
    messages = []
    for call, silence_s in ((("die", ""), 60.0), (("sleep", 600), 0.0)):
        engine = EngineProcess(asked)
        engine._child = Child("tests.liveness.obedient_child", "the SGLang engine")
        engine._child.ask("> ")
        messages.append(refused(partial(next, engine.generate(call, silence_s)), EngineLost))  # pyright: ignore[reportArgumentType]
    made = SimpleNamespace(scheduler_infos=[{"max_total_num_tokens": 700}])
    other: Any = SimpleNamespace(_scheduler_init_result=made, shutdown=lambda: None)
    messages.append(refused(lambda: private.check_cache(other, asked), RuntimeError))
    return [*messages, refused(lambda: attention_backend("fa3", "float32", (9, 0)))]


def placing(folder: Path, patch: pytest.MonkeyPatch) -> list[str]:
    """A node without a GPU, and an address where nothing is."""
    from orchestrator.sweep import cluster

    patch.setattr(cluster.ray, "nodes", lambda: [{"Alive": True, "Resources": {"CPU": 2.0}}])
    units = expand(load_experiment(ROOT / "experiments" / "gpu-smoke.yaml"))
    return [
        refused(lambda: cluster.check_placement(units)),
        refused(lambda: check_address("127.0.0.1:1")),
    ]
