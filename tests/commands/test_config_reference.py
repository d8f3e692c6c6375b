"""`trb config`: no key without a meaning, and the values of an experiment."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import yaml

from orchestrator import config, pair, rules
from orchestrator.commands.config_reference import all_keys, find_keys, reference, values_of
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.methods import METHODS
from orchestrator.experiment.units import expand
from orchestrator.rules import entries, entry
from orchestrator.selection.results_folder import claim
from orchestrator.selection.study import Study
from tests.sweeps import ROOT, trb_here, write_experiment

QUICKSTART = ROOT / "experiments" / "quickstart.yaml"
OF_FILES = [
    thing
    for thing in (vars(config) | vars(pair)).values()
    if dataclasses.is_dataclass(thing)
    and isinstance(thing, type)
    and thing.__module__ == config.__name__
    and thing is not config.Experiment
]


@pytest.mark.parametrize("schema", OF_FILES, ids=lambda schema: schema.__name__)
def test_every_field_has_a_meaning_in_a_sentence(schema: type) -> None:
    for name, declared in entries(schema).items():
        if not dataclasses.is_dataclass(declared.kind):
            meaning = declared.meaning
            assert meaning[0].isupper() or not meaning[0].isalpha(), (schema, name)
            assert meaning.endswith("."), (schema, name)


def test_every_knob_of_every_method_is_a_key() -> None:
    names = {key.name for key in all_keys()}
    assert {
        f"methods.{key}.{knob}" for key, method in METHODS.items() for knob in method.knobs
    } < names
    assert {
        "runtime.placement.gpus",
        "(setup) student.recipe.wrong_step",
        "(setup) data.files.sha256",
    } < names
    assert len(names) == len(all_keys())


def test_defaults_are_those_of_the_dataclasses() -> None:
    defaults = {key.name: key.default for key in all_keys()}
    assert yaml.safe_load(defaults["training.optimizer.beta2"]) == config.Optimizer().beta2
    assert yaml.safe_load(defaults["training.sft.checkpoints"]) == config.Sft().checkpoints
    assert defaults["(setup) student.shape.layers"] == defaults["(setup) student.eos"] == "—"
    assert defaults["runtime.placement.gpus"] == "0"


def test_closed_choices_are_listed_with_a_line_each() -> None:
    text = reference(find_keys("training.objective"), 200)
    assert text.startswith(
        "training.objective = renormalized  (one of renormalized, surrogate, tail,"
    )
    assert [
        line.split(":")[0].strip()
        for line in text.splitlines()
        if line.startswith("      ") and ": " in line
    ] == list(entry(rules.ObjectiveName).choices)


def test_rules_stand_beside_the_type_in_the_text_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert trb_here(capsys, "config", "training.steps")[1].startswith(
        "training.steps = 400  (whole number; ≥ 1 and ≤ 1,000,000)\n"
    )
    (key,) = json.loads(trb_here(capsys, "config", "training.steps", "--json")[1])
    assert list(key) == ["name", "kind", "default", "meaning", "choices"]
    assert key["kind"] == "whole number"


EVERY_METHODS = [
    "methods.NAME.placement",
    "methods.NAME.seeds",
    "methods.NAME.axes",
    "methods.NAME.points",
]


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("seeds", ["seeds"]),
        ("training.optimizer.lr", ["training.optimizer.lr"]),
        (
            "lr",
            [
                "methods.simple_opd.lr",
                "training.optimizer.lr",
                "(setup) student.recipe.lr",
                "(setup) teacher.recipe.lr",
            ],
        ),
        ("evaluation.benchmarks.mine.n", ["evaluation.benchmarks.NAME.n"]),
        (
            "methods.skd",
            ["methods.skd.K", "methods.skd.tau_T", *EVERY_METHODS],
        ),
        (
            "skd",
            ["methods.skd.K", "methods.skd.tau_T", *EVERY_METHODS],
        ),
        (
            "Fixed ε",
            ["methods.fixed_epsilon.epsilon", *EVERY_METHODS],
        ),
        ("vanilla", EVERY_METHODS),
    ],
)
def test_keys_are_found_by_name_beginning_end_or_method(word: str, names: list[str]) -> None:
    assert [key.name for key in find_keys(word)] == names


def test_an_unknown_key_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = trb_here(capsys, "config", "training.stepz")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "did you mean training.steps?" in err


@pytest.mark.parametrize("width", [60, 80, 100])
def test_meanings_fit_the_terminal(width: int) -> None:
    lines = [line for line in reference(all_keys(), width).splitlines() if line.startswith(" ")]
    assert max(map(len, lines)) <= width


def test_a_resolved_experiment_has_every_value(tmp_path: Path) -> None:
    path = write_experiment(
        tmp_path,
        {"vanilla": {}, "veto": {"beta_start": 0.4, "seeds": [7]}, "skd": {"K": 5, "tau_T": [0.6]}},
        training={"steps": 6},
    )
    found = values_of(path, ["training.top_k=4", "seeds=[0,1]"])
    expected = {
        "tiny.training.steps": 6,
        "tiny.training.top_k": 4,
        "tiny.training.optimizer.beta1": 0.9,
        "tiny.evaluation.benchmarks.arithmetic_short.limit": 6,
        "setups": ["tiny"],
        "seeds": [0, 1],
        "methods.skd.K": [5],
        "methods.vanilla": {},
        "runtime.wandb": "auto",
    }
    assert {key: found[key] for key in expected} == expected
    assert "methods.veto.seeds" not in found, "seeds on the command line hold for every method"


def test_the_command_prints_an_experiment_as_text_and_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = trb_here(capsys, "config", str(QUICKSTART), "training.steps=5")
    assert (code, err) == (0, "")
    assert "derailing.training.steps = 5" in out.splitlines()
    code, out, _ = trb_here(capsys, "config", str(QUICKSTART), "training.steps=5", "--json")
    assert json.loads(out)["derailing.training.steps"] == 5


def test_an_invalid_experiment_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = trb_here(capsys, "config", str(QUICKSTART), "training.steps=0")
    assert code == 2
    assert "training.steps: 0" in err


def test_an_experiment_may_be_shipped_or_a_results_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, by_name, _ = trb_here(capsys, "config", "quickstart", "--methods", "vanilla,TRB")
    assert code == 0
    assert "methods.trust_region.K" in by_name
    assert "methods.skd" not in by_name
    experiment = load_experiment(QUICKSTART)
    folder = claim(Study(experiment, expand(experiment), tmp_path))
    code, of_folder, _ = trb_here(capsys, "config", str(folder), "training.steps=7", "--json")
    assert code == 0
    values = json.loads(of_folder)
    assert values["derailing.training.steps"] == 7
