"""`trb doctor --gpu`: what it shows and writes, with checks that look at nothing; and all real ones
on SGLang.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.checks import catalog
from orchestrator.checks.bench import Bench
from orchestrator.checks.catalog import gpu_checks
from orchestrator.checks.check import Check, Checked, CheckVerdict, Found
from orchestrator.cli import main
from orchestrator.commands import doctor
from orchestrator.commands.doctor import looks
from tests.checks import fakes
from tests.checks.benches import small_bench
from tests.checks.fakes import check
from tests.engines.installed import skip_without
from tests.sweeps import trb


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "has_driver", lambda: False)


def examined(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *map(str, arguments)])
    captured = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, captured.out, captured.err


def writes_a_model(bench: Bench) -> Found:
    """A check: it leaves what the real one does, which is gigabytes."""
    bench.folders["student"].mkdir(parents=True)
    return Found("ok", bench.of.name)


def with_checks(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    own = Check("models", writes_a_model, limit_s=300)
    others = [check(getattr(fakes, name)) for name in names]
    monkeypatch.setattr(catalog, "gpu_checks", lambda: [own, *others])


def test_a_machine_without_a_gpu_is_told_in_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, err = examined(capsys, "--gpu", "--runs", tmp_path / "runs")
    assert (code, out) == (2, "")
    assert (
        err
        == "trb: --gpu: no NVIDIA driver here: expected a machine with a GPU, or --small for tiny models on CPUs\n"
    )
    assert not (tmp_path / "runs").exists()
    code, _, err = examined(capsys, "--small")
    assert (code, err) == (
        2,
        "trb: --small: not without --gpu: expected trb doctor --gpu --small\n",
    )


def test_lines_a_table_and_what_to_change(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    with_checks(monkeypatch, "refused", "passed_over", "exits")
    code, out, err = examined(
        capsys, "--gpu", "--small", "--runs", tmp_path, "engine.sampler=torch"
    )
    assert (code, err) == (1, "")
    lines = out.splitlines()
    assert lines[0].startswith(
        "qwen3-1.7b: tiny models, torch samples, torch trains, float32; random weights for"
    )
    folder = Path(lines[1].removeprefix("logs: "))
    assert folder.parent == tmp_path / ".doctor"
    shown = [line.split(" (")[0] for line in lines[2:6]]
    assert shown == ["ok   models", "fail refused", "skip passed_over", "fail exits"]
    assert lines[3].endswith(
        "s): engine.sampler: 'sglang': expected torch, or make setup-engines first"
    )
    table = [line for line in lines if line.startswith("│")]
    assert [line.split("│")[1].strip() for line in table] == [
        "models",
        "refused",
        "passed_over",
        "exits",
    ]
    assert [line.split("│")[2].strip() for line in table] == ["ok", "fail", "skip", "fail"]
    changes = lines.index("change for refused: the remedy of refused")
    assert lines[changes + 1] == f"  log: {folder}/refused.log"
    assert lines[-1] == "4 checks: 1 ok, 2 fail, 1 skipped"
    assert (folder / "exits.log").read_text().endswith("what it printed last\n")
    assert not (folder / "models").exists(), "gigabytes are not left behind"
    results = json.loads((folder / "results.json").read_text())
    assert [each["name"] for each in results["checks"]] == [
        "models",
        "refused",
        "passed_over",
        "exits",
    ]


def outcome(name: str, verdict: CheckVerdict = "ok", **numbers: float) -> Checked:
    return Checked(verdict, f"the words of {name}", "", numbers, name, 1.0, f"{name}.log")


WELL = (
    outcome(
        "sampler", start_s=74, load_s=0.8, rows=256, decoded_per_s=18_200, planned_per_s=25_000,
        peak_gib=66.0, granted_gib=70.6, processes=4, contexts=3,
    ),
    outcome(
        "switch", rows=110, decoded_per_s=8_100, planned_per_s=12_000,
        peak_gib=72.0, granted_gib=72.4, processes=4, contexts=3,
    ),
    outcome(
        "learner", publish_s=0.9, peak_gib=31.7, granted_gib=31.7, processes=2, contexts=3,
    ),
    outcome("canary", nats=0.03, allowed=0.5, kl=0.0011),
)  # fmt: skip


def test_the_numbers_of_the_first_hour_stand_in_their_order(tmp_path: Path) -> None:
    found = looks(small_bench(tmp_path), WELL)
    assert [look.found for look in found] == [
        "up in 74 s",
        "0.03",
        "decoding 66.0 of 70.6 GiB (4 processes, 3 counted); "
        "blending 72.0 of 72.4 GiB (4 processes, 3 counted); "
        "learning 31.7 of 31.7 GiB (2 processes, 3 counted)",
        "18,200 at 256 rows",
        "8,100 at 110 rows",
        "0.9 + 0.8 s",
        "0.0011",
    ]
    assert all(look.is_well for look in found)
    assert found[3].well == "15,000 or more, 0.6 of the plan's"


@pytest.mark.parametrize(
    ("name", "numbers", "row"),
    [
        ("canary", {"nats": 0.7, "allowed": 0.5, "kl": 0.001}, 1),
        ("switch", {"peak_gib": 73.0, "granted_gib": 72.4, "processes": 6, "contexts": 3}, 2),
        ("sampler", {"start_s": 74, "load_s": 0.8, "rows": 256, "decoded_per_s": 9e3,
                     "planned_per_s": 25e3}, 3),
        ("learner", {"publish_s": 4.0}, 5),
        ("canary", {"nats": 0.03, "allowed": 0.5, "kl": 0.01}, 6),
    ],
)  # fmt: skip
def test_a_number_that_is_not_well_is_marked_with_what_to_do(
    name: str, numbers: dict[str, Any], row: int, tmp_path: Path
) -> None:
    other = [outcome(name, **numbers) if each.name == name else each for each in WELL]
    found = looks(small_bench(tmp_path), other)
    assert not found[row].is_well
    assert found[row].change


def test_a_number_that_was_not_measured_is_missing(tmp_path: Path) -> None:
    failed = outcome("sampler", "fail")
    found = looks(small_bench(tmp_path), [failed])
    assert found[0].found == "the words of sampler", "why the engine did not start"
    assert [look.found for look in found[1:]] == [None] * 6
    assert not any(look.is_well for look in found[:2])


def test_json_alone_on_stdout(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_checks(monkeypatch, "slow")
    code, out, err = examined(capsys, "paper", "--gpu", "--small", "--json", "--runs", tmp_path)
    printed = json.loads(out)
    assert code == 0, "a warning is no failure"
    assert json.loads((Path(printed["folder"]) / "results.json").read_text()) == printed
    assert "warn slow" in err
    assert (printed["setup"], printed["small"]) == ("qwen3-1.7b", True)
    assert printed["random_weights"] == ["student", "teacher"]
    (_, slow) = printed["checks"]
    assert slow.pop("seconds") > 0
    assert slow.pop("log") == f"{printed['folder']}/slow.log"
    words = {"detail": "slower than it should be", "change": "the remedy of slow"}
    assert slow == {"name": "slow", "verdict": "warn", "numbers": {}, **words}


def test_checks_wait_as_long_for_an_engine_as_a_sweep_does(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []

    def looked_at(checks: Sequence[Check], *_: object) -> Iterator[Checked]:
        limits.extend(check.limit_s for check in checks)
        return iter(())

    monkeypatch.setattr(doctor, "run_checks", looked_at)
    start = "runtime.engine_start_s=1800"
    for override in ("runtime.engine_start_s=60", start):
        examined(capsys, "paper", "--gpu", "--small", "--runs", tmp_path / override, override)
    usual, later = limits[: len(gpu_checks())], limits[len(gpu_checks()) :]
    assert usual == [check.limit_s for check in gpu_checks()]
    assert later == [limit + 1200 for limit in usual]


def test_what_was_known_at_a_ctrl_c_is_kept(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_checks(monkeypatch, "passed_over")
    coming = doctor.run_checks

    def interrupted(*arguments: object):
        yield next(coming(*arguments))  # pyright: ignore[reportArgumentType]
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "run_checks", interrupted)
    code, _, err = examined(capsys, "--gpu", "--small", "--runs", tmp_path)
    assert (code, err) == (130, "trb: interrupted\n")
    (folder,) = (tmp_path / ".doctor").iterdir()
    assert [
        each["name"] for each in json.loads((folder / "results.json").read_text())["checks"]
    ] == ["models"]
    assert not (folder / "models").exists()


def test_needs_name_earlier_checks() -> None:
    earlier: set[str] = set()
    for each in gpu_checks():
        assert set(each.needs) <= earlier, each.name
        assert each.remedy
        earlier.add(each.name)
    assert len(earlier) == len(gpu_checks())


@pytest.mark.engines
@pytest.mark.timeout(
    1800
)  # three starts of SGLang, a kernel and a dozen processes: two minutes on an idle machine
def test_all_checks_on_tiny_models_and_sglang(tmp_path: Path) -> None:
    """Each of them really runs here but for those that only a GPU has."""
    skip_without("sglang")
    done = trb("doctor", "--gpu", "--small", "--json", "engine.sampler=sglang", "--runs", tmp_path)
    checks = {each["name"]: each for each in json.loads(done.stdout)["checks"]}
    assert done.returncode == 0, done.stderr
    assert list(checks) == [check.name for check in gpu_checks()]
    for name in (
        "attention",
        "offload",
        "collective",
        "models",
        "learner",
        "sampler",
        "canary",
        "switch",
    ):
        assert checks[name]["verdict"] == "ok", checks[name]
    for name in ("driver", "memory"):
        assert checks[name]["verdict"] in ("ok", "skipped"), checks[name]
    switch = checks["switch"]["numbers"]
    assert switch["blending_gib"] > 0.5, "SGLang's processes hold some memory"
    assert switch["between_gib"] < 0.25 < switch["after_gib"]
    assert checks["canary"]["numbers"]["nats"] < 1e-4
