"""One results folder holds one experiment: edited files, overrides, other folders and other models
never mix.
"""

from __future__ import annotations

import csv
import platform
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from analysis import results
from analysis.frames import trials, trials_csv
from analysis.report.page import write_report
from analysis.table.model import results_table
from orchestrator.config import Experiment
from orchestrator.errors import UserError
from orchestrator.experiment.load import RECORD, load_experiment
from orchestrator.experiment.units import expand
from orchestrator.models.locate import EXPERIMENTS
from orchestrator.selection.results_folder import (
    SUBMITS,
    claim,
    content_digest,
    folder_of,
    note_submit,
    only_results,
    settled_name,
    submits,
)
from orchestrator.selection.study import Invocation, Study
from tests.fake_runs import QUICKSTART, quickstart, units_of, write_run
from tests.sweeps import trb_here, trb_refuses, trb_shows


def settled(runs: Path, path: Path, *overrides: str) -> Experiment:
    """The experiment as the command loads it."""
    experiment = load_experiment(path, overrides)
    return replace(experiment, name=settled_name(experiment, overrides, runs))


def written(runs: Path, path: Path, *overrides: str) -> str:
    """The name of the folder that results go to."""
    experiment = settled(runs, path, *overrides)
    folder = claim(Study(experiment, expand(experiment, runs), runs))
    assert folder == folder_of(experiment.name, runs)
    return folder.name


def edited(folder: Path, **more: Any) -> Path:
    """Another quickstart.yaml in a folder of its own."""
    folder.mkdir()
    path = folder / "quickstart.yaml"
    raw = yaml.safe_load(QUICKSTART.read_text(encoding="utf-8")) | more
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    return path


def test_an_unchanged_experiment_keeps_its_folder_and_others_have_their_own(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    other = edited(tmp_path / "elsewhere", probe={"prompts": 3})
    assert written(runs, QUICKSTART) == "quickstart"
    assert written(runs, QUICKSTART) == "quickstart"
    assert written(runs, QUICKSTART, "runtime.keep=all", "data_dir=/x") == "quickstart"
    shorter = f"quickstart-{content_digest(load_experiment(other))}"
    assert written(runs, other) == shorter
    assert (
        written(runs, QUICKSTART, "probe.prompts=3") == shorter
    )  # the same numbers, asked for in another way
    plain = load_experiment(QUICKSTART).setups["arithmetic"].probe.prompts
    assert written(runs, other, f"probe.prompts={plain}") == "quickstart"
    assert len({written(runs, QUICKSTART, f"seeds=[{seed}]") for seed in (0, 1, 2)}) == 3


def test_overrides_leave_the_plain_name_to_the_plain_experiment(tmp_path: Path) -> None:
    longer = written(tmp_path, QUICKSTART, "training.steps=4")
    assert longer.startswith("quickstart-")
    assert written(tmp_path, QUICKSTART) == "quickstart"
    assert written(tmp_path, QUICKSTART, "training.steps=4") == longer
    assert written(tmp_path, QUICKSTART, "name=mine") == "mine"


def test_looking_writes_nothing_and_finds_what_will_be_written(tmp_path: Path) -> None:
    for overrides in ((), ("training.steps=4",)):
        before = settled(tmp_path, QUICKSTART, *overrides).name
        assert not (tmp_path / "results" / before).exists()
        assert written(tmp_path, QUICKSTART, *overrides) == before


@pytest.mark.parametrize("text", [None, "", "digest: 1234\n", "digest: 00000000\n", "\0"])
def test_a_folder_of_unknown_origin_is_left_alone(tmp_path: Path, text: str | None) -> None:
    folder = folder_of("quickstart", tmp_path)
    folder.mkdir(parents=True)
    (folder / "report.html").touch()
    if text is not None:
        (folder / RECORD).write_text(text, encoding="utf-8")
    assert written(tmp_path, QUICKSTART).startswith("quickstart-")
    assert (folder / "report.html").exists()
    assert ((folder / RECORD).read_text(encoding="utf-8") if text is not None else None) == text


def test_who_comes_second_to_a_name_takes_the_longer_one(tmp_path: Path) -> None:
    """Both found the name free before either wrote."""
    first = settled(tmp_path, QUICKSTART, "name=x")
    second = replace(settled(tmp_path, QUICKSTART, "name=x"), seeds=[5])
    assert claim(Study(first, expand(first), tmp_path)).name == "x"
    assert claim(Study(second, expand(second), tmp_path)).name == f"x-{content_digest(second)}"


def test_the_record_is_the_resolved_experiment_in_plain_yaml(tmp_path: Path) -> None:
    experiment = settled(tmp_path, QUICKSTART, "training.steps=4")
    folder = claim(Study(experiment, expand(experiment), tmp_path))
    record = yaml.safe_load((folder / RECORD).read_text(encoding="utf-8"))
    assert record["digest"] == content_digest(experiment)
    assert record["setups"]["arithmetic"]["training"]["steps"] == 4
    assert (
        record["setups"]["arithmetic"]["training"]["top_k"]
        == experiment.setups["arithmetic"].training.top_k
    )
    own = experiment.method_seeds
    grids = {
        name: grid | ({"seeds": own[name]} if name in own else {})
        for name, grid in experiment.methods.items()
    }
    assert record["methods"] == grids
    assert record["seeds"] == experiment.seeds


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_record_is_the_same_experiment_again(tmp_path: Path, path: Path) -> None:
    """Also with placements and seeds of single methods; its units have the same ids, and it claims
    the same folder.
    """
    overrides = ("methods.vanilla.placement=colocated", "methods.vanilla.seeds=[13,14]")
    for words in ((), overrides):
        experiment = settled(tmp_path, path, *words)
        units = expand(experiment)
        folder = claim(Study(experiment, units, tmp_path))
        again = settled(tmp_path, folder / RECORD)
        assert again == replace(experiment, notes=())
        assert [unit.id for unit in expand(again)] == [unit.id for unit in units]
        assert claim(Study(again, units, tmp_path)) == folder


def test_looking_changes_nothing_of_the_record(tmp_path: Path) -> None:
    """Neither do other words for the same numbers, nor another runtime."""
    experiment = settled(tmp_path, QUICKSTART)
    units = expand(experiment)
    folder = claim(Study(experiment, units, tmp_path))
    before = (folder / RECORD).read_bytes()
    other = settled(tmp_path, QUICKSTART, "runtime.keep=all", "data_dir=/x")
    assert claim(Study(other, units, tmp_path)) == folder
    assert (folder / RECORD).read_bytes() == before
    assert submits(folder) == []


def test_each_submit_that_runs_something_is_a_line_with_who_when_and_which_code(
    tmp_path: Path,
) -> None:
    experiment = settled(tmp_path, QUICKSTART)
    study = Study(
        experiment,
        expand(experiment),
        tmp_path,
        invocation=Invocation(("quickstart", "seeds=[0, 1]")),
    )
    begun = datetime.now(UTC).replace(microsecond=0)
    note_submit(study)
    with (claim(study) / SUBMITS).open("a", encoding="utf-8") as file:
        file.write('{"at": "torn')
        file.write("\n[]\n{}\n")
    note_submit(replace(study, invocation=Invocation(("quickstart",))))
    first, second = submits(claim(study))
    assert first["command"] == "trb submit quickstart 'seeds=[0, 1]'"
    assert second["command"] == "trb submit quickstart"
    assert (
        begun
        <= datetime.fromisoformat(first["at"])
        <= datetime.fromisoformat(second["at"])
        <= datetime.now(UTC)
    )
    assert first["host"] == platform.node()
    assert first["version"].startswith("trb ")
    assert first["user"]


def test_commands_take_a_results_folder_and_find_its_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRB_RUNS", raising=False)
    runs = tmp_path / "elsewhere"
    experiment = settled(runs, QUICKSTART, "training.steps=40")
    units = expand(experiment, runs)
    for method in ("vanilla", "veto"):
        write_run(runs, experiment, units_of(units, method)[0], {20: [1, 2]})
    folder = claim(Study(experiment, units, runs))
    shown = []
    for words in (
        [str(QUICKSTART), "training.steps=40", "--runs", str(runs)],
        [str(folder)],
        [str(folder / RECORD)],
    ):
        shown.append(trb_shows(capsys, "table", *words, "--format", "csv"))
    assert "\nvanilla,arithmetic,avg,37.5," in shown[0]
    assert shown[0] == shown[1] == shown[2]
    monkeypatch.setenv("TRB_RUNS", "others")
    _, _, beside = trb_here(capsys, "report", folder, "--out", tmp_path / "page.html")
    following = beside.splitlines()[-1]
    assert following == f"trb submit {folder} 'seeds=[0,1,2,3,4]'", (
        "right in any shell, whatever TRB_RUNS is there"
    )
    complaint = trb_refuses(capsys, "report", "elsewhere/results")
    assert "a folder without experiment.yaml" in complaint


def test_what_the_digest_is_of() -> None:
    experiment = load_experiment(QUICKSTART)
    setup = experiment.setups["arithmetic"]
    assert content_digest(
        replace(experiment, setups={"arithmetic": replace(setup, title="Other")})
    ) != content_digest(experiment)
    assert content_digest(replace(experiment, setups={"arithmetic": setup})) == content_digest(
        experiment
    )
    assert content_digest(replace(experiment, placements={}, data_dir="/x")) == content_digest(
        experiment
    )
    texts = replace(setup, evaluation=replace(setup.evaluation, keep_texts=0))
    assert content_digest(replace(experiment, setups={"arithmetic": texts})) == content_digest(
        experiment
    )


def test_pages_and_figures_of_other_runs_do_not_stay_beside_new_tables(tmp_path: Path) -> None:
    """The same experiment whose units have other ids, as with models made anew on another kind of
    machine.
    """
    experiment, units = quickstart()
    write_run(tmp_path, experiment, units_of(units, "vanilla")[0], {20: [1, 2]})
    study = Study(experiment, units, tmp_path)
    folder = results.write_results(study, results_table(study))
    assert write_report(Study(experiment, units, tmp_path)).path.parent == folder
    (folder / "notes.txt").touch()
    names = {path.name for path in folder.iterdir()}
    assert {"report.html", "trajectories-arithmetic.png", "table.md", "trials.csv", RECORD} < names
    assert claim(Study(experiment, units, tmp_path)) == folder
    assert {path.name for path in folder.iterdir()} == names
    claim(Study(experiment, [replace(unit, id=f"{unit.id[:-1]}x") for unit in units], tmp_path))
    left = {path.name for path in folder.iterdir()}
    assert names - left == {
        "report.html",
        "trajectories-arithmetic.png",
        "trajectories-arithmetic.pdf",
    }


def test_figures_and_report_of_the_command_go_where_the_table_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = ("evaluation.rescore=false", "training.steps=40")
    experiment = settled(tmp_path, QUICKSTART, *overrides)
    units = expand(experiment, tmp_path)
    write_run(tmp_path, experiment, units_of(units, "vanilla")[0], {20: [1, 2]})
    study = Study(experiment, units, tmp_path)
    folder = results.write_results(study, results_table(study))
    for command in ("figures", "report"):
        shown = trb_shows(capsys, command, QUICKSTART, *overrides, "--runs", tmp_path)
        assert {Path(line).parent for line in shown.splitlines()} == {folder}
    assert [path.name for path in (tmp_path / "results").iterdir()] == [folder.name]


# --- trials.csv ---


def test_every_unit_is_a_row_with_its_scores(tmp_path: Path) -> None:
    experiment, units = quickstart("seeds=[0,1]", "methods.sft_warmup=null")
    write_run(tmp_path, experiment, units_of(units, "base_eval")[0], {0: [1, 0]})
    first, second = units_of(units, "vanilla")
    write_run(tmp_path, experiment, first, {20: [1, 2], 40: [4, 3]}, steps=60)
    write_run(tmp_path, experiment, second, {20: [1, None]}, done=False)
    frame = trials(Study(experiment, units, tmp_path))
    assert list(frame["unit"]) == [unit.id for unit in units]
    rows = {row["unit"]: row for row in csv.DictReader(trials_csv(frame).splitlines())}
    best = rows[first.id]
    assert (best["method"], best["seed"], best["state"], best["best_step"]) == (
        "vanilla",
        "0",
        "done",
        "40",
    )
    assert (best["avg"], best["arithmetic_short"], best["arithmetic_long"]) == (
        "87.50",
        "100.00",
        "75.00",
    )
    assert best["seconds"] == ""
    assert (rows[second.id]["avg"], rows[second.id]["best_step"]) == ("", "")
    base = rows[units_of(units, "base_eval")[0].id]
    assert (base["method"], base["kind"], base["avg"]) == ("base", "base_eval", "12.50")
    trust = next(unit for unit in units if unit.method == "trust_region")
    assert (rows[trust.id]["setting"], rows[trust.id]["state"]) == ("epsilon0=0.01 K=12", "queued")


def test_the_only_results_are_taken(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere"):
        only_results(tmp_path / "nowhere")
    with pytest.raises(UserError, match="no results"):
        only_results(tmp_path)
    folder = folder_of(written(tmp_path, QUICKSTART), tmp_path)
    assert only_results(tmp_path) == folder
    other = folder.with_name("other")
    other.mkdir()
    (other / RECORD).write_text("digest: 01234567\n")
    with pytest.raises(UserError, match="other"):
        only_results(tmp_path)
