"""Points that a search asks of Optuna by the scores so far, over made-up runs."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from orchestrator.experiment.load import load_experiment, resolved_text
from orchestrator.experiment.units import Unit, expand
from orchestrator.selection.asking import unasked_units, with_asked
from orchestrator.selection.confirmation import with_confirmation
from orchestrator.selection.results_folder import content_digest, folder_of
from orchestrator.selection.samples_wanted import family_state
from orchestrator.selection.study import Study
from orchestrator.sweep.asking import ask
from tests.fake_runs import TRUST_REGION_ALONE, quickstart_study, units_of, write_run
from tests.sweeps import trb_refuses, trb_shows, write_experiment

WORDS = [
    *TRUST_REGION_ALONE,
    "methods.trust_region={epsilon0: {log: [0.01, 1.0]}, K: [6, 12]}",
    "axes={training.optimizer.lr: {log: [1e-4, 1e-2]}}",
    "search={kind: optuna, trials: 10, batch: 4}",
    "seeds=[0]",
]


def searched(runs: Path, *words: str) -> Study:
    return quickstart_study(runs, *WORDS, *words)


def trials(study: Study) -> list[Unit]:
    return units_of(with_asked(study).units, "trust_region")


def evaluate(study: Study, units: list[Unit], right: int = 2) -> None:
    """All checkpoints of these trials, with so many right answers of four."""
    for unit in units:
        write_run(study.runs, study.experiment, unit, {20: [right, right]}, steps=unit.steps)


def asked_to_the_end(runs: Path) -> list[dict]:
    """The points of a search whose scores rise with the rate."""
    study = searched(runs)
    while True:
        for unit in trials(study):
            evaluate(study, [unit], min(4, int(unit.knobs["training.optimizer.lr"] * 500)))
        if not ask(with_asked(study)):
            return [unit.knobs for unit in trials(study)]


def test_a_batch_is_asked_once_the_last_one_is_evaluated(tmp_path: Path) -> None:
    study = searched(tmp_path)
    first = trials(study)
    assert len(first) == 4
    evaluate(study, first[:3])
    assert not ask(with_asked(study))
    evaluate(study, first[3:])
    assert ask(with_asked(study))
    assert not ask(with_asked(study)), "the new ones are not evaluated yet"
    assert [unit.id for unit in trials(study)][:4] == [unit.id for unit in first]
    assert len(trials(study)) == 8


def test_the_points_depend_on_the_scores_alone_and_all_differ(tmp_path: Path) -> None:
    points = asked_to_the_end(tmp_path / "a")
    assert points == asked_to_the_end(tmp_path / "b")
    assert len(points) == 10
    assert all(point not in points[:place] for place, point in enumerate(points))
    for point in points:
        assert 0.01 <= point["epsilon0"] <= 1
        assert point["K"] in (6, 12)
        assert float(f"{point['training.optimizer.lr']:.3g}") == point["training.optimizer.lr"]


def test_asked_points_stay_as_they_were_written(tmp_path: Path) -> None:
    """Another version of Optuna may answer otherwise; a search under way goes on from its file."""
    asked_to_the_end(tmp_path)
    study = searched(tmp_path)
    file = folder_of(study.experiment.name, tmp_path) / "asked.json"
    known = json.loads(file.read_text())
    known["arithmetic"]["trust_region"][0]["epsilon0"] = 0.123
    file.write_text(json.dumps(known))
    assert trials(study)[4].knobs["epsilon0"] == 0.123


def test_a_family_is_settled_once_nothing_is_left_to_ask(tmp_path: Path) -> None:
    study = searched(tmp_path, "confirm.seeds=[7,8]")
    evaluate(study, trials(study))

    def settled() -> bool:
        now = with_confirmation(study)
        [family] = [each for each in now.families() if each[0][0].is_trial]
        return family_state(now, family).settled

    for _ in range(2):
        assert not settled()
        assert not with_confirmation(study).confirming
        assert ask(with_asked(study))
        evaluate(study, trials(study))
    assert settled()
    assert len(with_confirmation(study).confirming) == 2


def test_a_failed_setting_does_not_stop_the_search(tmp_path: Path) -> None:
    study = searched(tmp_path)
    *good, failed = trials(study)
    evaluate(study, good)
    write_run(tmp_path, study.experiment, failed, {}, steps=3, done=False)
    assert not ask(with_asked(study))
    (tmp_path / failed.id / "error.txt").write_text("loss is not finite")
    assert ask(with_asked(study))


def test_the_plan_counts_what_will_be_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = searched(tmp_path)
    assert len(unasked_units(with_asked(study))) == 6
    path = write_experiment(
        tmp_path,
        {"trust_region": {"epsilon0": {"log": [0.01, 1.0]}, "K": [5]}},
        search={"kind": "optuna", "trials": 10, "batch": 4},
    )
    shown = trb_shows(capsys, "plan", path, "--runs", tmp_path / "runs")
    assert "10 trials" in shown
    assert "10 points, first 4 points of epsilon0" in shown


def test_the_resolved_experiment_goes_on_asking(tmp_path: Path) -> None:
    study = searched(tmp_path)
    record = tmp_path / "resolved.yaml"
    record.write_text(resolved_text(study.experiment, {"digest": "", "runs": ""}))
    again = load_experiment(record)
    assert again.spaces == study.experiment.spaces
    assert content_digest(again) == content_digest(study.experiment)
    assert [unit.id for unit in expand(again)] == [unit.id for unit in expand(study.experiment)]


def test_without_optuna_a_line_says_how_to_get_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_experiment(
        tmp_path,
        {"trust_region": {"epsilon0": {"log": [0.01, 1.0]}, "K": [5]}},
        search={"kind": "optuna", "trials": 10, "batch": 4},
    )
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "optuna" else found(name)
    )
    line = trb_refuses(capsys, "submit", path, "--runs", tmp_path / "runs")
    assert line.startswith("trb: search.kind: 'optuna': expected `pip install optuna` first")
