"""`trb export`: the folder loads with transformers, and its card says what the table says."""

from __future__ import annotations

import hashlib
import re
import shutil
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard, ModelCardData

from orchestrator.commands.export import licence_of
from orchestrator.experiment.evaluation_protocol import evaluation_ids, fresh_evaluation_ids
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.units import expand
from orchestrator.models.locate import MODELS
from orchestrator.records.writer import RunWriter
from orchestrator.selection.results_folder import claim
from orchestrator.selection.study import Study
from tests.fake_runs import record, write_evaluation
from tests.sweeps import trb_here

Capture = pytest.CaptureFixture[str]
SCORES = {"vanilla": [1, 2], "trust_region": [4, 1]}  # right of 4 on the two benchmarks


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A finished sweep of two methods and two seeds, whose checkpoints are the shipped student."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRB_RUNS", raising=False)
    path, runs = tmp_path / "sweep.yaml", tmp_path / "runs"
    methods = {"vanilla": {}, "trust_region": {"epsilon0": [0.05], "K": [12]}}
    path.write_text(yaml.safe_dump({"setups": ["arithmetic"], "methods": methods, "seeds": [0, 1]}))
    experiment = load_experiment(path)
    units = expand(experiment)
    for unit in units:
        with closing(RunWriter(runs, unit.id)) as run:
            run.describe({}, dict)
            step = 0 if unit.is_untrained else unit.steps
            if unit.is_trial:
                run.append("metrics.jsonl", [{"step": row} for row in range(unit.steps)])
                run.new_checkpoint(step, copy_student)
            run.commit(unit.steps)
            setup = experiment.setups[unit.setup]
            counts = SCORES.get(unit.method or "", [0, 0])
            for ids in (evaluation_ids(setup), fresh_evaluation_ids(setup)):
                for evaluation_id, correct in zip(ids.values(), counts, strict=True):
                    write_evaluation(run, evaluation_id, step, [record(correct)])
            run.finish()
    claim(Study(experiment, units, runs))
    return [str(path)]


def copy_student(folder: Path) -> None:
    shutil.copytree(MODELS / "arithmetic-student", folder, dirs_exist_ok=True)
    (folder / "canary.json").write_text("{}")


def test_the_lines_of_the_card_load_it_and_it_has_the_scores(
    capsys: Capture, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = trb_here(capsys, "export", "TRB", *words, "--output", "model")
    assert code == 0, err
    assert out == "model\n"
    text = Path("model/README.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    monkeypatch.chdir("model")
    exec(lines.replace("…", "3+4"), {})
    assert capsys.readouterr().out.startswith("3+4\n")
    monkeypatch.chdir("..")
    assert not Path("model/canary.json").exists()
    card = ModelCard.load("model/README.md")
    assert isinstance(card.data, ModelCardData)
    assert card.data.library_name == "transformers"
    assert card.data.license is None
    assert card.data.base_model is None
    assert card.data.eval_results is not None
    values = {result.dataset_type: result.metric_value for result in card.data.eval_results}
    assert values == {"arithmetic_short": 100.0, "arithmetic_long": 25.0}
    weights = hashlib.sha256(Path("model/model.safetensors").read_bytes()).hexdigest()
    for fact in (weights, "epsilon0=0.05 K=12", "seed 0", "62.5"):
        assert fact in card.text


def test_the_only_experiment_need_not_be_named(capsys: Capture, words: list[str]) -> None:
    code, _, err = trb_here(capsys, "export", "vanilla", "--seed", "1", "--output", "model")
    assert code == 0, err
    assert "seed 1" in Path("model/README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("more", "names"),
    [
        (["Vanila", "--output", "model"], ["METHOD: 'Vanila'", "did you mean Vanilla?"]),
        (["Vanilla", "--output", "runs"], ["--output: 'runs'"]),
        (["Vanilla", "--output", "no/model"], ["--output: 'no/model'"]),
        (["Vanilla", "--output", "model", "--seed", "7"], ["--seed: 7", "0, 1"]),
        (["Vanilla", "--output", "model", "--setup", "x"], ["--setup: 'x'", "arithmetic"]),
    ],
)
def test_mistakes_are_one_line(
    capsys: Capture, words: list[str], more: list[str], names: list[str]
) -> None:
    method, *options = more
    code, _, err = trb_here(capsys, "export", method, *words, *options)
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(f"trb: {names[0]}")
    assert names[-1] in err
    assert not Path("model").exists()


def test_changed_weights_are_not_exported(capsys: Capture, words: list[str]) -> None:
    weights = next(Path("runs").glob("*-vanilla-*s0*/checkpoints/*/model.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    code, _, err = trb_here(capsys, "export", "Vanilla", *words, "--output", "model")
    assert code == 2
    assert "model.safetensors" in err
    assert sorted(path.name for path in Path().iterdir()) == ["runs", "sweep.yaml"]


def test_an_opened_pack_has_no_weights_to_export(capsys: Capture, words: list[str]) -> None:
    for command in (["pack", *words], ["open", "sweep.tar.gz"]):
        assert trb_here(capsys, *command)[0] == 0
    code, _, err = trb_here(capsys, "export", "Vanilla", "--runs", "sweep", "--output", "model")
    assert code == 2
    assert "checkpoints" in err


@pytest.mark.parametrize(
    ("text", "licence"),
    [
        ("---\nlicense: apache-2.0\ntags: [x]\n---\n# A model\n", "apache-2.0"),
        ("---\ntags: [x]\n---\nlicense: mit\n", None),
        ("# A model\n", None),
    ],
)
def test_the_licence_is_that_of_the_card(tmp_path: Path, text: str, licence: str | None) -> None:
    (tmp_path / "README.md").write_text(text)
    assert licence_of(tmp_path) == licence
