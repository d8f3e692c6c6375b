"""`trb logs`: finding a unit, and what is printed of it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import pytest

from orchestrator.commands.logs import find_units, follow_logs, show_logs
from orchestrator.errors import UserError
from orchestrator.experiment.units import Unit
from orchestrator.records.writer import RunWriter
from tests.fake_runs import QUICKSTART, quickstart, units_of
from tests.sweeps import trb_here, trb_shows


def describe(run: RunWriter, unit: Unit) -> None:
    keys = ("kind", "setup", "method", "knobs", "seed")
    run.describe({"unit": {key: getattr(unit, key) for key in keys}}, dict)


GIVEN = "methods.vanilla.axes.training.optimizer.lr=[0.0008]"


@pytest.fixture
def units(tmp_path: Path) -> list[Unit]:
    """Three units with a log of one line each, the last of them failed."""
    _, known = quickstart()
    chosen = [*units_of(known, "trust_region"), *units_of(known, "vanilla")]
    for unit in chosen:
        with closing(RunWriter(tmp_path, unit.id)) as run:
            describe(run, unit)
            run.log.line(f"hello of {unit.label}")
    with closing(RunWriter(tmp_path, chosen[-1].id)) as run:
        run.fail("RuntimeError: no", "Traceback of it\nRuntimeError: no\n")
    (tmp_path / "results").mkdir()
    return chosen


def test_a_run_directory_means_its_unit_wherever_it_lies(
    tmp_path: Path,
    units: list[Unit],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / units[0].id
    for path in (folder, folder / "log.txt", f"{folder}/"):
        code, out, err = trb_here(capsys, "logs", path)
        assert (code, f"hello of {units[0].label}" in out) == (0, True), err
    monkeypatch.chdir(tmp_path / "results")
    code, _, err = trb_here(capsys, "logs", tmp_path / "nowhere" / units[0].id)
    assert (code, "no such unit; " in err) == (2, True)


def test_a_unit_is_found_by_id_beginning_label_and_part(tmp_path: Path, units: list[Unit]) -> None:
    first, second, vanilla = units
    for name, unit in {
        first.id: first,
        f"runs/{first.id}/": first,
        "arithmetic-van": vanilla,
        "trb epsilon0=0.05 K=12": second,
        "TRB epsilon0=0.05 K=12 seed 0": second,
        "arithmetic TRB epsilon0=0.05 K=12 seed 0": second,
        "epsilon0=0.01": first,
        "trust_region eps0=0.05 K=12": second,
        "Trust-Region epsilon0=0.05 K=12 seed 0": second,
    }.items():
        assert find_units(name, tmp_path) == [unit.id], name


def test_a_label_means_all_of_its_seeds(tmp_path: Path, units: list[Unit]) -> None:
    _, known = quickstart("seeds=[0,1]")
    others = units_of(known, "vanilla")
    with closing(RunWriter(tmp_path, others[1].id)) as run:
        describe(run, others[1])
    assert find_units("Vanilla", tmp_path) == sorted(unit.id for unit in others)
    assert find_units("vanilla seed 1", tmp_path) == [others[1].id]
    [stage, _] = units_of(known, "sft")
    with closing(RunWriter(tmp_path, stage.id)) as run:
        describe(run, stage)
    assert find_units("supervised stage", tmp_path) == [stage.id]
    assert stage.label == "Supervised stage"


def test_runs_at_a_given_rate_are_those_of_the_setup_with_its_label(tmp_path: Path) -> None:
    """An experiment that gives the rate meets the runs of one that leaves it out."""
    [plain], [given] = (units_of(quickstart(*more)[1], "vanilla") for more in ((), (GIVEN,)))
    assert (plain.id, plain.label, given.label) == (given.id, "Vanilla", "Vanilla lr=0.0008")
    with closing(RunWriter(tmp_path, plain.id)) as run:
        run.describe({"unit": asdict(plain)}, dict)
    for name in ("vanilla", "Vanilla lr=0.0008", "arithmetic vanilla lr=0.0008 seed 0"):
        assert find_units(name, tmp_path) == [plain.id], name
    [_, stage] = units_of(
        quickstart("methods.sft_warmup.axes.training.optimizer.lr=[0.0008,0.0003]")[1], "sft"
    )
    with closing(RunWriter(tmp_path, stage.id)) as run:
        run.describe({"unit": asdict(stage)}, dict)
    assert find_units("supervised stage lr=0.0003", tmp_path) == [stage.id]


def test_logs_of_several_units_say_which_setting_each_is_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two experiments whose rates differ: both have a Vanilla of seed 0."""
    rates, ids = ("0.0003", "0.0008"), list[str]()
    for rate in rates:
        [unit] = units_of(quickstart(f"training.optimizer.lr={rate}")[1], "vanilla")
        with closing(RunWriter(tmp_path, unit.id)) as run:
            run.describe({"unit": asdict(unit)}, dict)
            run.log.line("hello")
        ids.append(unit.id)
    shown = trb_shows(capsys, "logs", "Vanilla seed 0", "--runs", tmp_path)
    for unit_id, value in zip(ids, rates, strict=True):
        assert f"==> {unit_id} (arithmetic Vanilla lr={value} seed 0)\n" in shown


def test_what_means_several_or_none_is_refused_with_names(
    tmp_path: Path, units: list[Unit]
) -> None:
    first, second, vanilla = units
    with pytest.raises(UserError, match="means 2 units") as several:
        find_units("trust_region", tmp_path)
    assert first.id in str(several.value)
    assert second.id in str(several.value)
    with pytest.raises(UserError, match="did you mean") as none:
        find_units("vanila", tmp_path)
    assert vanilla.id in str(none.value)
    with pytest.raises(UserError, match="does not exist"):
        find_units("vanilla", tmp_path / "nowhere")


def test_the_log_is_printed_and_the_traceback_of_a_failure(
    tmp_path: Path, units: list[Unit]
) -> None:
    lines: list[str] = []
    show_logs([units[-1].id], tmp_path, lines.append)
    assert lines[0].endswith("hello of Vanilla")
    assert "Traceback of it" in lines[1]


def test_a_traceback_that_the_log_holds_is_not_printed_twice(
    tmp_path: Path, units: list[Unit]
) -> None:
    with closing(RunWriter(tmp_path, units[0].id)) as run:
        run.log.line("failed: RuntimeError: no\nTraceback of it\nRuntimeError: no")
        run.fail("RuntimeError: no", "Traceback of it\nRuntimeError: no\n")
    lines: list[str] = []
    show_logs([units[0].id], tmp_path, lines.append)
    assert "\n".join(lines).count("Traceback of it") == 1


def test_following_prints_what_is_added(tmp_path: Path, units: list[Unit]) -> None:
    lines: list[str] = []
    rounds = iter([True, True, False])

    def goes_on() -> bool:
        with (tmp_path / units[0].id / "log.txt").open("a") as file:
            file.write("a whole line\nhalf a li")
        return next(rounds)

    follow_logs([units[0].id], tmp_path, lines.append, goes_on)
    assert [line.split()[-1] for line in lines] == ["K=12", "line", "line"]
    assert lines[2] == "half a lia whole line"


def test_the_command_takes_a_unit_or_an_experiment(
    tmp_path: Path, units: list[Unit], capsys: pytest.CaptureFixture[str]
) -> None:
    own = str(QUICKSTART)
    for words, expected in (
        (["vanilla"], 1),
        ([own], 3),
        ([own, "--methods", "TRB"], 2),
        ([own, "seeds=[0]"], 3),
    ):
        code, out, _ = trb_here(capsys, "logs", *words, "--runs", tmp_path)
        assert (code, out.count("hello of")) == (0, expected)
    mistakes = {
        ("nothing",): "no such unit",
        ("math-smoke",): "has a log",  # a shipped experiment, which nobody ran here
        ("vanilla", "--methods", "TRB"): "trb logs EXP.yaml --methods TRB",
        ("vanilla", "seeds=[0]"): "trb logs EXP.yaml seeds=[0]",
    }
    for words, complaint in mistakes.items():
        code, _, err = trb_here(capsys, "logs", *words, "--runs", tmp_path)
        assert (code, err.count("\n")) == (2, 1)
        assert complaint in err
