"""A user's mistake ends in exit code 2 and one line that begins with the key or file and the value.

The sentences after these may be reworded; only a suggestion (`did you mean steps?`) is a part of
what is promised.
"""

from __future__ import annotations

import copy
import errno
import itertools
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.cli import COMMANDS
from orchestrator.commands import listing
from orchestrator.commands.config_reference import ANY, all_keys
from orchestrator.data.files import folder_sha256
from orchestrator.experiment.load import load_experiment
from tests.fake_runs import QUICKSTART
from tests.sweeps import (
    NO_MIRROR,
    TINY_SETUP,
    TINY_SHAPE,
    environment,
    trb,
    trb_here,
    trb_refuses,
    trb_shows,
)

SHA = "0" * 64
# The config.json of a model folder that agrees with TINY_SETUP.
MODEL_CONFIG = {
    "model_type": "qwen3",
    "vocab_size": 56,
    "num_hidden_layers": 1,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "intermediate_size": 32,
    "tie_word_embeddings": True,
}
TINY = "setups/tiny.yaml"
AMC = {"max_response_tokens": 24, "benchmarks": {"amc23": {"n": 1}}}
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty folder, whose files have short names, and without data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRB_DATA_DIR", raising=False)
    monkeypatch.setenv("TRB_DATA_MIRROR", NO_MIRROR)


def assert_names(line: str, *words: str | Path) -> None:
    """The line begins with the first of the words, and holds the others."""
    assert line.startswith(f"trb: {words[0]}"), line
    for word in words[1:]:
        assert str(word) in line, line


# --- overrides of the quickstart: words, then what the line names ---

UNKNOWN = [
    ("trainin.steps=3", "trainin: unknown", "did you mean training?"),
    ("training.stepz=3", "training.stepz: unknown", "did you mean steps?"),
    ("evaluation.benchmarks.math50.n=3", "evaluation.benchmarks.math50: unknown", "math500?"),
    ("methods.trust_regoin.K=1", "methods.trust_regoin: unknown", "did you mean trust_region?"),
    ("setups=[arithmetik]", "setups: 'arithmetik'", "did you mean arithmetic?"),
    ("lr=1e-4", "lr: unknown key, did you mean training.optimizer.lr?"),
    ("axes.lr=[1]", "axes.lr: unknown key", "did you mean axes.training.optimizer.lr?"),
    ("axes.evaluation.seed=[1]", "axes.evaluation.seed: unknown key", "training"),
    ("methods.vanilla.lr=1", "methods.vanilla.lr: unknown key", "axes: {training.optimizer.lr: …}"),
    (
        "methods.vanilla.axes.lr=[1]",
        "methods.vanilla.axes.lr: unknown",
        "training.optimizer.lr?",
    ),
]
WRONG_TYPES = [
    ("training.steps=ten", "training.steps: 'ten'"),
    ("training.steps=", "training.steps: no value"),
    ("training=5", "training: 5"),
    ("methods=[vanilla,skd]", "methods: ['vanilla', 'skd']", "{vanilla: {}, skd: {K:"),
    ("methods.vanilla.placement=3", "methods.vanilla.placement: 3", "inline, colocated, split"),
    ("axes.training.optimizer.lr=[fast]", "axes.training.optimizer.lr: 'fast'", "a number > 0"),
    ("axes=3", "axes: 3", "{training.optimizer.lr: [1e-4]}"),
    ("axes.training.optimizer=[1]", "axes.training.optimizer: expected a key", "single value"),
    ("training.optimizer.lr=[1e-4,2e-4]", "training.optimizer.lr: [", "axes.training.optimizer.lr"),
    ("training.optimizer=[1]", "training.optimizer: [1]: expected a mapping with keys among lr"),
    ("training.sft.checkpoints=[[6]]", "training.sft.checkpoints[0]: [6]", "a whole number"),
    ("seeds=5", "seeds: 5", "[0, 1, 2, 3, 4]"),
    ("seeds=[1.0]", "seeds[0]: 1.0"),
]
OUT_OF_RANGE = [
    ("methods.fixed_epsilon.epsilon=-0.1", "methods.fixed_epsilon.epsilon: -0.1", "≥ 0"),
    ("methods.trust_region.epsilon0=[0.1,-1]", "methods.trust_region.epsilon0: -1"),
    ("methods.trust_region.epsilon0=null", "methods.trust_region.epsilon0: missing"),
    ("methods.veto.beta_start=1", "methods.veto.beta_start: 1", "≥ 0 and < 1"),
    ("methods.skd.tau_T=0", "methods.skd.tau_T: 0", "> 0"),
    ("methods.skd.K=48", "methods.skd.K: 48", "47"),
    ("axes.training.optimizer.lr=[0]", "axes.training.optimizer.lr: 0", "> 0"),
    ("axes.training.optimizer.lr=[1e-4,.inf]", "axes.training.optimizer.lr: inf", "finite"),
    ("axes.training.optimizer.lr=[]", "axes.training.optimizer.lr: []", "{log: [1e-6, 1e-4]"),
    ("axes.training.steps=[3,3]", "axes.training.steps: [3, 3]", "once"),
    (
        "axes.training.steps.log=[0,9] axes.training.steps.points=3",
        "axes.training.steps.log: [0, 9]",
        "> 0",
    ),
    (
        "axes.training.steps.log=[9,3] axes.training.steps.points=3",
        "axes.training.steps.log",
        "lower one",
    ),
    ("axes.training.steps.log=[3,9]", "axes.training.steps: a range without points", "points: N"),
    (
        "axes.training.steps.log=[3,9] axes.training.steps.points=1",
        "axes.training.steps.points: 1",
        "2 or",
    ),
    (
        "axes.training.steps.choice=[3] axes.training.steps.points=2",
        "axes.training.steps",
        "of its own",
    ),
    ("axes.training.steps.list=[3]", "axes.training.steps", "unknown key"),
    ("axes.training.top_k=[4,48]", "training.top_k: 48", "47"),
    (
        "axes.training.sft.after=[restart,continue]",
        "axes.training.sft.after",
        "what vanilla learns",
    ),
    ("training.top_k=48", "training.top_k: 48", "47"),
    ("training.steps=10000000", "training.steps: 10000000", "≤ 1,000,000"),
    ("training.objective=tial", "training.objective: 'tial'", "did you mean tail?"),
    ("evaluation.error=0", "evaluation.error: 0", "> 0 and < 1"),
    ("evaluation.benchmarks.arithmetic_short.n=0", "evaluation.benchmarks.arithmetic_short.n: 0"),
    ("seeds=[]", "seeds: []"),
    ("seeds=[0,1,0]", "seeds: [0, 1, 0]"),
    ("setups=[]", "setups: []", "arithmetic"),
    ("runtime.placement.gpus=1.5", "runtime.placement.gpus: 1.5"),
    ("runtime.placement.role_gpus.teacher=2", "runtime.placement.role_gpus: {", "split"),
    ("runtime.keep=none", "runtime.keep: 'none'", "best, all"),
    ("engine.sampler=sglang runtime.draft_length=17", "runtime.draft_length: 17", "≤ 16"),
    ("runtime.resident=true", "runtime.resident: True", "null or false where torch samples"),
]
CONTRADICTIONS = [
    ("methods.sft_warmup.K=7", "methods.sft_warmup.K: 7", "training.sft.checkpoints [15]"),
    ("training.sft.checkpoints=[99]", "training.sft.checkpoints: [99]"),
    ("training.objective=tail", "training.objective (with method veto): 'tail'"),
    ("runtime.placement.gpus=2", "engine.sampler: 'torch'", "sglang"),
    (
        "engine.dtype=float32 engine.head_dtype=bfloat16",
        "engine.head_dtype: 'bfloat16'",
        "float32, as in engine.dtype",
    ),
]
NO_OVERRIDES = [
    ("training.steps", "override: 'training.steps'"),
    ("training.steps=[1", "override: 'training.steps=[1'"),
    ("training.steps=${nowhere}", "override: 'training.steps=${nowhere}'"),
    ("training.steps=10 training.steps=20", "training.steps: given twice"),
    ("--gpus 8.5", "--gpus: '8.5'"),
    ("--seeds 3", "--seeds: unknown", "seeds=[0,1,2]"),
    ("--training.steps=3", "--training.steps: unknown", "training.steps=3"),
    ("--rums x", "--rums: unknown", "did you mean --runs?"),
    ("--runs", "--runs: "),
]


@pytest.mark.parametrize(
    "row",
    [*UNKNOWN, *WRONG_TYPES, *OUT_OF_RANGE, *CONTRADICTIONS, *NO_OVERRIDES],
    ids=lambda row: row[0][:40],
)
def test_differences_from_an_experiment(row: tuple[str, ...], capsys: Capture) -> None:
    words, *named = row
    assert_names(trb_refuses(capsys, "plan", QUICKSTART, *words.split()), *named)


@pytest.mark.parametrize(
    ("placement", "key", "words"),
    [
        ("mode=split gpus=1", "mode: 'split'", "inline or colocated"),
        ("mode=split gpus=4 role_gpus.rollout=1", "gpus: 4", "3"),
        ("mode=colocated gpus=2", "mode: 'colocated'", "split"),
        ("gpus=3", "gpus: 3", "arithmetic's student"),
        ("mode=split role_gpus.rollout=3", "role_gpus.rollout: 3", "4 heads"),
    ],
)
def test_gpus_that_a_placement_cannot_give(
    placement: str, key: str, words: str, capsys: Capture
) -> None:
    overrides = [f"runtime.placement.{override}" for override in placement.split()]
    engines = ("engine.sampler=sglang", "engine.trainer=verl")
    line = trb_refuses(capsys, "plan", QUICKSTART, *overrides, *engines)
    assert_names(line, f"runtime.placement.{key}", words)


def test_an_engine_of_one_device_gets_one_gpu(capsys: Capture) -> None:
    split = "runtime.placement.mode=split"
    learner = trb_refuses(
        capsys, "plan", QUICKSTART, split, "runtime.placement.role_gpus.learner=2"
    )
    assert_names(learner, "engine.trainer: 'torch'", "verl")
    # The teacher of the supervised stage answers on the sampler.
    answers = [split, "runtime.placement.role_gpus.teacher=2", "engine.trainer=verl"]
    assert_names(
        trb_refuses(capsys, "plan", QUICKSTART, *answers), "engine.sampler: 'torch'", "sglang"
    )
    placement = load_experiment(QUICKSTART, [*answers, "methods.sft_warmup=null"]).runtime.placement
    assert placement.gpus == 4


def test_values_at_a_limit_are_taken() -> None:
    load_experiment(QUICKSTART, ["engine.sampler=sglang", "runtime.draft_length=16"])
    load_experiment(QUICKSTART, ["engine.sampler=torch", "runtime.draft_length=17"])
    split = load_experiment(QUICKSTART, ["runtime.placement=split"])
    assert split.runtime.placement.mode == "split"


# --- command lines ---


@pytest.mark.parametrize(
    "row",
    [
        ("", "no COMMAND given", "plan, submit, cancel", "trb --help"),
        ("submt", "COMMAND: 'submt'", "did you mean submit?"),
        ("submit", "EXP.yaml is missing", "trb submit", "EXP.yaml [key=value ...]"),
        ("plan quickstrat.yaml", "quickstrat.yaml: no such file", "did you mean quickstart?"),
        ("probe contination", "PROBE: 'contination'", "did you mean continuation?"),
        ("table", "table: ", "EXP.yaml", "--results FILE.csv"),
        ("table --results r.csv", "r.csv: ", "method,setup,benchmark,pass_at_1"),
        ("table x.yaml --format html", "--format: 'html'", "md, tex, csv, json"),
        ("list experimants", "list: 'experimants'", "did you mean experiments?"),
        ("grade a b", "argument: 'b'", "trb grade"),
        ("grade gone.jsonl", "gone.jsonl: "),
    ],
    ids=lambda row: row[0],
)
def test_command_lines(row: tuple[str, ...], capsys: Capture) -> None:
    command, *named = row
    assert_names(trb_refuses(capsys, *command.split()), *named)


def test_words_in_one_pair_of_quotes(capsys: Capture) -> None:
    line = trb_refuses(capsys, "plan", "quickstart training.steps=4")
    assert_names(line, "quickstart training.steps=4: no such file", "expected quickstart, ")
    line = trb_refuses(capsys, "table", "quickstart", "--compare", "vanilla vs veto")
    assert_names(line, "--compare: 'vanilla vs veto'", "Vanilla")


def test_figures_of_nothing_and_into_a_file(capsys: Capture) -> None:
    Path("runs").mkdir()
    Path("file").touch()
    line = trb_refuses(capsys, "figures", QUICKSTART, "--out", "figures")
    assert_names(line, Path("runs").resolve(), "trb submit")
    assert_names(trb_refuses(capsys, "figures", QUICKSTART, "--out", "file"), "--out: 'file'")


def test_a_file_instead_of_the_runs_folder(capsys: Capture) -> None:
    Path("file").touch()
    for command in ("status", "submit"):
        assert_names(trb_refuses(capsys, command, QUICKSTART, "--runs", "file"), "--runs: 'file'")


# --- experiment files ---


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "setups: "),
        ("setups: [1\n", "broken.yaml line 2"),
        ("setups: [arithmetic]\nname: a\nname: b\n", "broken.yaml line 3"),
        ("- arithmetic\n", "broken.yaml: "),
        ("setups: [arithmetic]\nname: My Sweep\nmethods: {vanilla: {}}\n", "name: 'My Sweep'"),
        ("setups: [arithmetic]\n", "methods: {}"),
        ("setups: {sums: null}\nmethods: {vanilla: {}}\n", "setups.sums: no value"),
        ("setups: [arithmetic]\nmethods: {vanilla: {1: 2}}\n", "methods.vanilla.1: unknown"),
        (
            "setups: [arithmetic]\nmethods: {trust_region: {epsilon0: 0.1, K: 5}, TRB: null}\n",
            "methods.TRB: another name of trust_region",
        ),
    ],
)
def test_broken_experiment_files(text: str, named: str, capsys: Capture) -> None:
    Path("broken.yaml").write_text(text)
    assert_names(trb_refuses(capsys, "plan", "broken.yaml"), named)


def test_files_that_are_no_experiments(capsys: Capture) -> None:
    Path("binary.yaml").write_bytes(b"\xff\xfe\x00")
    Path("q.yaml").write_text("setups: [arithmetic]\n")
    assert_names(trb_refuses(capsys, "plan", "nowhere.yaml"), "nowhere.yaml: no such file")
    assert_names(trb_refuses(capsys, "plan", "."), ".: a folder")
    assert_names(trb_refuses(capsys, "plan", "binary.yaml"), "binary.yaml: ")
    assert_names(trb_refuses(capsys, "plan", "q.yml"), "EXP.yaml: 'q.yml'", "did you mean q.yaml?")


def test_a_method_is_known_by_its_label_in_files_and_overrides(tmp_path: Path) -> None:
    path = write_sweep(tmp_path)
    methods = {"Vanilla": {}, "TRB": {"epsilon0": [0.05], "K": [5]}}
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"methods": methods}))
    experiment = load_experiment(path, ["methods.trb.K=3"])
    assert experiment.methods == {"vanilla": {}, "trust_region": {"epsilon0": [0.05], "K": [3]}}


# --- setups ---


def write_sweep(folder: Path, **changes: Any) -> Path:
    """A vanilla experiment with the tiny setup changed at its top-level keys."""
    (folder / "setups").mkdir(exist_ok=True)
    setup = copy.deepcopy(TINY_SETUP) | changes
    (folder / "setups" / "tiny.yaml").write_text(yaml.safe_dump(setup))
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump({"setups": ["tiny"], "methods": {"vanilla": {}}}))
    return path


def model(
    path: Path | str = "/nowhere/model", revision: str = SHA, **changes: Any
) -> dict[str, Any]:
    """A setup's model that is loaded instead of made."""
    return {"path": str(path), "revision": revision, "eos": 45, "shape": TINY_SHAPE, **changes}


def recipe(eos: int = 45, shape: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    return {"eos": eos, "shape": TINY_SHAPE | (shape or {}), "recipe": changes}


@pytest.mark.parametrize(
    ("part", "content", "named"),
    [
        ("trainin", {}, (f"{TINY}: trainin: unknown", "did you mean training?")),
        ("training", {"optimizer": {"lrr": 1}}, (f"{TINY}: training.optimizer.lrr: unknown",)),
        ("training", {"top_k": 0}, (f"{TINY}: training.top_k: 0",)),
        ("student", recipe(updates="many"), (f"{TINY}: student.recipe.updates: 'many'",)),
        ("student", recipe(eos=47), ("tiny.student.eos: 47", "46")),
        ("student", model(recipe={}), ("tiny.student: ", "path", "recipe")),
        ("student", recipe(shape={"layers": 0}), (f"{TINY}: student.shape.layers: 0", "≥ 1")),
        ("teacher", model(revision="main"), ("tiny.teacher.revision: 'main'",)),
        ("vocabulary", {"size": 56, "valid": 57}, ("tiny.vocabulary.valid: 57", "56")),
        ("data", {"source": "json"}, (f"{TINY}: data.source: 'json'", "did you mean jsonl?")),
    ],
)
def test_mistakes_in_a_setup(
    part: str, content: Any, named: tuple[str, ...], tmp_path: Path, capsys: Capture
) -> None:
    assert_names(trb_refuses(capsys, "plan", write_sweep(tmp_path, **{part: content})), *named)


# --- `trb submit` refuses before anything starts ---


def refused(capsys: Capture, experiment: Path, *overrides: str) -> str:
    """The line of a submit that must leave nothing behind."""
    runs = experiment.parent / "runs"
    line = trb_refuses(capsys, "submit", experiment, *overrides, "--runs", runs)
    assert not runs.exists() or list(runs.iterdir()) == []
    return line


def write_model(folder: Path, config: str = "", **changes: Any) -> dict[str, Any]:
    """A model folder of nothing but its config, declared by its true sha256."""
    folder.mkdir()
    (folder / "config.json").write_text(config or json.dumps(MODEL_CONFIG | changes))
    return model(folder, folder_sha256(folder))


def test_models_that_are_not_as_declared(tmp_path: Path, capsys: Capture) -> None:
    gone = refused(capsys, write_sweep(tmp_path, teacher=model(tmp_path / "gone")))
    assert_names(gone, tmp_path / "gone")
    declared = write_model(tmp_path / "model")
    Path("model/extra.txt").write_text("changed")
    changed = refused(capsys, write_sweep(tmp_path, student=declared))
    sha256 = folder_sha256(tmp_path / "model")
    assert_names(changed, tmp_path / "model", sha256, declared["revision"])
    wide = write_model(tmp_path / "wide", hidden_size=32)
    shape = refused(capsys, write_sweep(tmp_path, student=wide))
    assert_names(shape, "tiny.student.shape.hidden: 16", "32")
    student, teacher = write_model(tmp_path / "s"), write_model(tmp_path / "t", vocab_size=40)
    vocabularies = refused(capsys, write_sweep(tmp_path, student=student, teacher=teacher))
    assert_names(vocabularies, "tiny.teacher", "40", "56")


def test_no_data_file_and_no_network(tmp_path: Path, capsys: Capture) -> None:
    line = refused(capsys, write_sweep(tmp_path, evaluation=AMC))
    assert_names(line, f"{NO_MIRROR}/QwenLM", "`trb data fetch FOLDER`", "data_dir=FOLDER")
    assert not (tmp_path / "data").exists()


def test_no_such_data_file(tmp_path: Path, capsys: Capture) -> None:
    # No source of this file is known.
    data = {"source": "jsonl", "files": [{"file": "own.jsonl", "sha256": SHA}]}
    sweep, folder = write_sweep(tmp_path, data=data), tmp_path / "nowhere"
    assert_names(refused(capsys, sweep, f"data_dir={folder}"), folder / "own.jsonl")


CONTENTS = [
    (b'{"id": "1", "problem": "1+1", "answer": "2"}\n', "sha256"),
    (b'{"id": "1"}\n{"id": \n', "line 2"),
    (b"[1]\n", "line 1"),
    (b"\xff\n", "UTF-8"),
]


@pytest.mark.parametrize(("content", "word"), CONTENTS)
def test_an_altered_benchmark_file(
    content: bytes, word: str, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "eval" / "amc23.jsonl"
    file.parent.mkdir()
    file.write_bytes(content)
    line = refused(capsys, write_sweep(tmp_path, evaluation=AMC), f"data_dir={tmp_path}")
    assert_names(line, file, word)


# The absent model in these is a mistake too; data are checked first, and nothing starts if they are
# not.
@pytest.mark.parametrize(("content", "word"), CONTENTS)
def test_an_altered_training_file(
    content: bytes, word: str, tmp_path: Path, capsys: Capture
) -> None:
    Path("train.jsonl").write_bytes(content)
    data = {"source": "jsonl", "files": [{"file": "train.jsonl", "sha256": SHA}]}
    experiment = write_sweep(tmp_path, data=data, student=model())
    line = refused(capsys, experiment, f"data_dir={tmp_path}")
    assert_names(line, tmp_path / "train.jsonl", word)


# --- other commands ---


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ('{"gold": "1", "generation": "1"}\n{"gold": \n', " line 2: not valid JSON"),
        ('["1", "1"]\n', " line 1: str"),
        ('{"gold": "1"}\n', " line 1: ['gold']"),
        ('{"gold": "1", "generation": 1}\n', " line 1: generation: 1"),
    ],
)
def test_grading_broken_rows(content: str, named: str, capsys: Capture) -> None:
    Path("rows.jsonl").write_text(content)
    assert_names(trb_refuses(capsys, "grade", "rows.jsonl"), f"rows.jsonl{named}")


def test_grading_into_a_folder(capsys: Capture) -> None:
    Path("folder").mkdir()
    Path("rows.jsonl").write_text('{"gold": "1", "generation": "\\\\boxed{1}"}\n')
    line = trb_refuses(capsys, "grade", "rows.jsonl", "--out", "folder")
    assert_names(line, "--out: 'folder'")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--benchmarks arithmetic_short:x", ("--benchmarks: 'arithmetic_short:x'",)),
        ("--benchmarks arithmetic_short,arithmetic_short", ("--benchmarks: 'arithmetic_short,",)),
        ("--benchmarks amc23:4", ("data/eval/amc23.jsonl: ", "`trb data fetch data`")),
        ("--benchmarks aritmetic_short:4", ("", "aritmetic_short: unknown", "arithmetic_short?")),
        ("--limit 0", ("", "limit: 0", "≥ 1")),
        ("--seed -1", ("--seed: '-1'", "≥ 0")),
        ("--setup arithmetik", ("", "'arithmetik'", "did you mean arithmetic?")),
        ("", ("MODEL: 'gone'", "--revision")),
    ],
)
def test_evaluating_a_model(words: str, named: tuple[str, ...], capsys: Capture) -> None:
    defaults = ["--setup", "arithmetic", "--benchmarks", "arithmetic_short"]
    assert_names(trb_refuses(capsys, "eval", "gone", *defaults, *words.split()), *named)


def test_evaluating_a_run_instead_of_a_checkpoint(capsys: Capture) -> None:
    Path("run/checkpoints/step_000020").mkdir(parents=True)
    options = ("--setup", "arithmetic", "--benchmarks", "arithmetic_short")
    assert_names(trb_refuses(capsys, "eval", "run", *options), "MODEL: 'run'", "step_000020")


# --- the command as a process ---


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (errno.EACCES, "folder/.lock"),
        (errno.ENOSPC, "folder/.table.md.tmp"),
        (errno.EROFS, "folder"),
    ],
)
def test_a_folder_that_takes_no_files(
    number: int, name: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> int:
        raise OSError(number, os.strerror(number), name)

    Path("folder").mkdir()
    monkeypatch.setattr(listing, "run", refuse)
    expected = f"a folder that can be written to ({os.strerror(number)})"
    assert_names(trb_refuses(capsys, "list", "methods"), "folder: 'folder'", expected)


def test_an_error_of_reading_names_the_file(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> int:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "a/b.json")

    monkeypatch.setattr(listing, "run", refuse)
    assert trb_refuses(capsys, "list", "methods") == "trb: a/b.json: No such file or directory"


def test_processes_refuse(tmp_path: Path) -> None:
    assert "TRB_DATA_DIR" not in environment()
    done = trb("submit", write_sweep(tmp_path, evaluation=AMC), "--runs", tmp_path / "runs")
    assert (done.returncode, done.stdout) == (2, "")
    assert_names(done.stderr, "", "`trb data fetch FOLDER`")
    assert done.stderr.count("\n") == 1


# --- generated: whatever is typed or lies in a file, a command ends with 0, or with 2 and a line ---

VALUES = ("", "x", "-1", "0", "1.5", str(10**19), ".nan", "null", "true", "[]", "{a: {b: c}}")
TYPED = """
NOTHING / - / -- / plan NOTHING / plan LONG / plan EXP --runs LONG / plan EXP -x / plan EXP LONG / plan EXP ===
plan EXP EXP / table --results EXP / status EXP --runs EXP / figures EXP --out EXP / report EXP --out . / grade .
config LONG / config --frob / eval m / eval . --setup LONG --benchmarks x / regrade / plan EXP name=NOT_UTF8
eval m --setup ../../etc/passwd --benchmarks arithmetic_short / table EXP --compare LONG / doctor nope.yaml
"""
WORDS = {"EXP": "sweep.yaml", "LONG": "x" * 5000, "NOTHING": "", "NOT_UTF8": "\udcff"}


def ends_well(capsys: Capture, *arguments: str) -> None:
    """Code 0, or 2 with one short line; nothing new in the folder."""
    before = sorted(Path().rglob("*"))
    code, out, err = trb_here(capsys, *arguments)
    assert code in (0, 2), err
    assert "Traceback" not in out + err
    if code == 2:
        assert (out, err[:5], err.count("\n"), len(err) <= 400) == ("", "trb: ", 1, True), err
    assert sorted(Path().rglob("*")) == before


def test_anything_may_be_typed(tmp_path: Path, capsys: Capture) -> None:
    write_sweep(tmp_path)
    for line in filter(None, TYPED.replace("\n", " / ").split(" / ")):
        for placeholder, text in WORDS.items():
            line = line.replace(placeholder, text)
        ends_well(capsys, *line.split(" "))


def test_any_key_may_have_any_value(tmp_path: Path, capsys: Capture) -> None:
    """Each key of an experiment with one of the values, in turn."""
    write_sweep(tmp_path)
    values = itertools.cycle(VALUES)
    for key in all_keys():
        if not key.name.startswith("(setup)"):
            any_name = "arithmetic_short" if "benchmarks" in key.name else "vanilla"
            name = key.name.replace(ANY, any_name)
            ends_well(capsys, "plan", "sweep.yaml", f"{name}={next(values)}")


@pytest.mark.parametrize("part", [part for part, v in TINY_SETUP.items() if isinstance(v, dict)])
def test_any_key_of_a_setup_may_have_any_value(part: str, tmp_path: Path, capsys: Capture) -> None:
    for key in TINY_SETUP[part]:
        for value in (None, -1, {"a": 1}):
            write_sweep(tmp_path, **{part: TINY_SETUP[part] | {key: value}})
            ends_well(capsys, "plan", "sweep.yaml")


def test_a_file_may_be_broken_anywhere(tmp_path: Path, capsys: Capture) -> None:
    """A character changed, the rest cut off, or a line twice."""
    good, chance = write_sweep(tmp_path).read_text(), random.Random(0)
    texts = [f"{good}{line}\n" for line in good.splitlines()]
    for _ in range(5):
        place = chance.randrange(len(good))
        texts += [
            good[:place] + chance.choice("\0\t{}[]:,&*!|>\n😀") + good[place + 1 :],
            good[:place],
        ]
    texts += [
        "name: " + "[" * 5000 + "]" * 5000,
        "name: &x [1, *x]\n",
        "setups: !!python/name:os ''\n",
    ]
    for text in texts:
        Path("sweep.yaml").write_text(text)
        ends_well(capsys, "plan", "sweep.yaml")


@pytest.mark.parametrize("word", ["training.optimizer=[1]", "training.sft.checkpoints=[[6]]"])
def test_only_a_key_with_one_value_is_said_to_be_an_axis(word: str, capsys: Capture) -> None:
    assert "axis" not in trb_refuses(capsys, "plan", QUICKSTART, word)


def test_help_lists_every_command_once_by_purpose(capsys: Capture) -> None:
    text = trb_shows(capsys, "--help")
    listed = [line.split()[0] for line in text.splitlines() if line.startswith("  ")]
    for name in COMMANDS:
        assert listed.count(name) == 1, name
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert text.index("run a sweep:") < text.index("judge:") < text.index("look up:")
