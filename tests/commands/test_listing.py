"""What there is to choose from, and a choice of methods: through the commands, in this process."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from orchestrator.commands import listing
from orchestrator.experiment.units import expand
from orchestrator.selection.results_folder import claim
from orchestrator.selection.study import Study
from tests.fake_runs import fake_models, quickstart, units_of, write_run
from tests.sweeps import trb_here, trb_shows, write_experiment


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("experiments", ("quickstart", "paper-small", "Every method of the paper")),
        ("methods", ("TRB", "trust_region", "epsilon0: a number ≥ 0", "Fixed ε")),
        ("setups", ("arithmetic", "Qwen3-1.7B-Base ← Qwen3-8B")),
        ("benchmarks", ("aime24", "eval/math500.jsonl", "generated")),
    ],
)
@pytest.mark.parametrize("columns", ["60", "200"])
def test_everything_that_is_shipped_is_listed(
    kind: str,
    words: tuple[str, ...],
    columns: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    code, out, _ = trb_here(capsys, "list", kind)
    assert code == 0
    for word in words if columns == "200" else words[:1]:
        assert word in out


def test_results_are_listed_with_the_command_that_made_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for name, text in (
        ("one", "digest: 0123abcd\n"),
        ("torn", "a: ["),
        ("drawn", "digest: 0123abcd\n"),
    ):
        folder = tmp_path / "results" / name
        folder.mkdir(parents=True)
        (folder / "experiment.yaml").write_text(text)
    line = {"command": "trb submit one.yaml", "user": "u", "host": "h", "version": "trb 0.1.0"}
    lines = [json.dumps(line | {"at": f"2026-11-2{day}T10:11:12+00:00"}) for day in (1, 2)]
    (tmp_path / "results" / "one" / "submits.jsonl").write_text("\n".join(lines))
    code, out, _ = trb_here(capsys, "list", "results", "--runs", tmp_path)
    assert code == 0
    rows = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert re.search(r"2026-11-22 10:11 +trb submit one.yaml", rows["one"])
    assert rows["drawn"].rstrip().endswith("not recorded")
    assert "cannot be read" in out


def test_results_say_how_far_they_are_and_what_leads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four samples of a problem each: Vanilla has 3 and 1 right, TRB 2 and 1."""
    monkeypatch.setenv("COLUMNS", "200")
    runs = tmp_path / "runs"
    experiment, _ = quickstart()
    fake_models(experiment, runs)
    units = expand(experiment, runs)
    [vanilla], [trb, *_] = (units_of(units, name) for name in ("vanilla", "trust_region"))
    scores = {vanilla.id: [3, 1], trb.id: [2, 1]}
    for unit in (vanilla, trb):
        write_run(runs, experiment, unit, {20: scores[unit.id], 40: [0, 0], 60: [0, 0]}, unit.steps)
    claim(Study(experiment, units, runs))
    shown = trb_shows(capsys, "list", "results", "--runs", runs)
    assert re.search(rf"quickstart +\w{{8}} +2 of {len(units)} +Vanilla 50.0 ", shown), shown


def test_nothing_to_list_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "none in" in trb_here(capsys, "list", "results", "--runs", tmp_path)[1]


def test_all_lists_come_without_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = trb_here(capsys, "list", "--runs", tmp_path)
    assert code == 0
    assert all(kind in out for kind in listing.KINDS)


def test_only_the_chosen_methods_are_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    methods = {
        "vanilla": {},
        "trust_region": {"epsilon0": [0.05], "K": [5]},
        "skd": {"K": [5], "tau_T": [1.0]},
    }
    path = write_experiment(tmp_path, methods)
    code, out, _ = trb_here(
        capsys, "plan", path, "--methods", "Vanilla,TRB", "--json", "--runs", tmp_path / "runs"
    )
    assert code == 0
    found = {unit["method"] for unit in json.loads(out)["units"]} - {None}
    assert found == {"vanilla", "trust_region"}


def test_a_method_that_is_not_in_the_file_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_experiment(tmp_path, {"vanilla": {}})
    code, _, err = trb_here(capsys, "plan", path, "--methods", "vanilla,SKD")
    assert code == 2
    assert len(err.splitlines()) == 1
    assert "'SKD'" in err


def test_setups_beside_experiments_of_this_folder_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_experiment(tmp_path, {"vanilla": {}})
    monkeypatch.chdir(tmp_path)
    assert "tiny" in trb_here(capsys, "list", "setups")[1]
