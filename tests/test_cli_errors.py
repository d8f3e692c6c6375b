"""A user's mistake ends in exit code 2 and one line that names the key or file, the value and what
would be right.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.cli import main
from orchestrator.commands.config_reference import resolved
from orchestrator.data.files import folder_sha256
from orchestrator.experiment.load import load_experiment
from tests.sweeps import NO_MIRROR, ROOT, TINY_SETUP, TINY_SHAPE, environment, trb, write_experiment

QUICKSTART = ROOT / "experiments" / "quickstart.yaml"
SHA = "0" * 64
# The config.json of a model folder that agrees with TINY_SETUP.
MODEL_CONFIG = {
    "vocab_size": 56,
    "num_hidden_layers": 1,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "intermediate_size": 32,
    "tie_word_embeddings": True,
}
AMC = {"max_response_tokens": 24, "benchmarks": {"amc23": {"n": 1}}}


@pytest.fixture(autouse=True)
def _no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRB_DATA_DIR", raising=False)
    monkeypatch.setenv("TRB_DATA_MIRROR", NO_MIRROR)


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """The one line of a refused command."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert ended.value.code == 2, captured
    assert captured.err.startswith("trb: ")
    assert captured.err.endswith("\n")
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    return captured.err


def assert_names(line: str, *words: str | Path) -> None:
    assert [word for word in map(str, words) if word not in line] == [], line


# --- overrides of the quickstart ---


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("trainin.steps=3", ("trainin: unknown key", "setups", "did you mean training?")),
        ("training.stepz=3", ("training.stepz: unknown key", "did you mean steps?")),
        ("training.optimizer.rate=1", ("training.optimizer.rate: unknown key", "weight_decay")),
        ("runtime.placement.gpu=1", ("runtime.placement.gpu: unknown key", "did you mean gpus?")),
        (
            "evaluation.benchmarks.arithmetic_short.samples=1",
            ("arithmetic_short.samples: unknown key", "n, limit"),
        ),
        (
            "methods.trust_region.epsilon=0.1",
            ("trust_region.epsilon: unknown key", "did you mean epsilon0?"),
        ),
        (
            "methods.trust_regoin.K=1",
            ("methods.trust_regoin: unknown method", "did you mean trust_region?"),
        ),
        (
            "methods.skd.placement.modes=inline",
            ("methods.skd.placement.modes: unknown key", "did you mean mode?"),
        ),
        ("setups=[arithmetik]", ("setups: 'arithmetik'", "did you mean arithmetic?")),
        (
            "evaluation.benchmarks.math50.n=3",
            ("evaluation.benchmarks.math50: unknown", "did you mean math500?"),
        ),
    ],
)
def test_unknown_words(
    override: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert_names(complaint(capsys, "plan", QUICKSTART, override), *words)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training.steps=ten", ("training.steps: 'ten'", "a whole number")),
        ("training.steps=1.5", ("training.steps: 1.5", "a whole number")),
        ("training.steps=true", ("training.steps: True", "a whole number")),
        ("training.steps=", ("training.steps: no value", "a whole number")),
        ("training.steps=[1]", ("training.steps: [1]", "a whole number")),
        ("training.optimizer.lr=fast", ("training.optimizer.lr: 'fast'", "a number")),
        ("training=5", ("training: 5", "a mapping")),
        ("methods=null", ("methods: no value", "a mapping")),
        ("methods.veto=3", ("methods.veto: 3", "a mapping of knobs")),
        (
            "methods.vanilla.placement=3",
            ("methods.vanilla.placement: 3", "inline, colocated, split"),
        ),
        ("setups=arithmetic", ("setups: 'arithmetic'", "a list")),
        ("seeds=0", ("seeds: 0", "a list")),
        ("seeds=[1.0]", ("seeds[0]: 1.0", "a whole number")),
        ("data_dir=3", ("data_dir: 3", "text")),
        (
            "evaluation.benchmarks.arithmetic_short.n=true",
            ("arithmetic_short.n: True", "a whole number"),
        ),
    ],
)
def test_wrong_types(
    override: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert_names(complaint(capsys, "plan", QUICKSTART, override), *words)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "methods.fixed_epsilon.epsilon=-0.1",
            ("methods.fixed_epsilon.epsilon: -0.1", "a number ≥ 0"),
        ),
        (
            "methods.fixed_epsilon.epsilon=.nan",
            ("methods.fixed_epsilon.epsilon: nan", "a finite number"),
        ),
        (
            "methods.trust_region.epsilon0=[0.1,-1]",
            ("methods.trust_region.epsilon0: -1", "a number ≥ 0"),
        ),
        (
            "methods.trust_region.epsilon0=null",
            ("methods.trust_region.epsilon0: missing", "a number ≥ 0"),
        ),
        ("methods.trust_region.K=0", ("methods.trust_region.K: 0", "a whole number ≥ 1")),
        (
            "methods.temperature_warmup.E=0",
            ("methods.temperature_warmup.E: 0", "a whole number ≥ 1"),
        ),
        ("methods.veto.beta_start=1", ("methods.veto.beta_start: 1", "≥ 0 and < 1")),
        ("methods.temperature_warmup.tau0=0", ("methods.temperature_warmup.tau0: 0", "> 0")),
        ("methods.skd.tau_T=0", ("methods.skd.tau_T: 0", "> 0")),
        ("methods.skd.K=48", ("methods.skd.K: 48", "≤ the 47 ids")),
        ("training.top_k=48", ("training.top_k: 48", "≤ the vocabulary of 47 ids")),
        ("training.steps=0", ("training.steps: 0", "≥ 1")),
        ("training.optimizer.lr=0", ("training.optimizer.lr: 0", "> 0")),
        (
            "training.optimizer.decay=cosine",
            ("training.optimizer.decay: 'cosine'", "constant, linear"),
        ),
        ("training.optimizer.beta2=1", ("training.optimizer.beta2: 1", "< 1")),
        ("evaluation.temperature=0", ("evaluation.temperature: 0", "> 0")),
        (
            "evaluation.budget=adaptiv",
            ("evaluation.budget: 'adaptiv'", "full, adaptive", "did you mean adaptive?"),
        ),
        ("evaluation.error=0", ("evaluation.error: 0", "> 0 and < 1")),
        ("evaluation.error=1", ("evaluation.error: 1", "> 0 and < 1")),
        (
            "evaluation.benchmarks.arithmetic_short.n=0",
            ("evaluation.benchmarks.arithmetic_short.n: 0", "≥ 1"),
        ),
        (
            "evaluation.benchmarks.arithmetic_long.limit=0",
            ("evaluation.benchmarks.arithmetic_long.limit: 0", "≥ 1"),
        ),
        ("seeds=[]", ("seeds: []", "one or several whole numbers ≥ 0")),
        ("seeds=[-1]", ("seeds[0]: -1", "a whole number ≥ 0")),
        ("seeds=[0,1,0]", ("seeds: [0, 1, 0]", "every seed once")),
        ("methods.veto.seeds=[]", ("methods.veto.seeds: []", "one or several whole numbers ≥ 0")),
        ("methods.veto.seeds=3", ("methods.veto.seeds: 3", "for example [0, 1, 2]")),
        ("methods.veto.seeds=null", ("methods.veto.seeds: no value", "a list")),
        ("methods.veto.seeds=[1.5]", ("methods.veto.seeds[0]: 1.5", "a whole number ≥ 0")),
        ("methods.veto.seeds=[true]", ("methods.veto.seeds[0]: True", "a whole number ≥ 0")),
        ("methods.veto.seeds=[0,-1]", ("methods.veto.seeds[1]: -1", "a whole number ≥ 0")),
        ("methods.veto.seeds=[2,2]", ("methods.veto.seeds: [2, 2]", "every seed once")),
        ("methods.veto.seed=[2]", ("methods.veto.seed", "did you mean seeds?")),
        ("setups=[]", ("setups: []", "at least one of arithmetic")),
        (
            "setups=[arithmetic,arithmetic]",
            ("setups: ['arithmetic', 'arithmetic']", "every setup once"),
        ),
        (
            "methods.fixed_epsilon.epsilon=[0.1,0.1]",
            ("fixed_epsilon.epsilon: [0.1, 0.1]", "0.1 stands twice"),
        ),
        (
            "methods.fixed_epsilon.epsilon=[1,1.0]",
            ("fixed_epsilon.epsilon: [1, 1.0]", "1.0 stands twice"),
        ),
        (
            "runtime.placement.gpus=1.5",
            ("runtime.placement.gpus: 1.5", "a share of one GPU such as 0.5, or a whole"),
        ),
        ("runtime.placement.gpus=-1", ("runtime.placement.gpus: -1", "a whole number of GPUs")),
        (
            "runtime.placement.gpus=2",
            ("engine.sampler: 'torch'", "sglang", "torch uses one device", "2 GPUs"),
        ),
        ("runtime.placement.role_gpus.teacher=2", ("role_gpus: {", "only in mode split")),
        (
            "runtime.placement.role_gpus.teacher=0",
            ("runtime.placement.role_gpus.teacher: 0", "≥ 1"),
        ),
        (
            "runtime.placement.role_gpus.reward=1",
            ("role_gpus.reward: unknown key", "rollout, teacher, learner"),
        ),
        (
            "methods.veto.placement.gpus=0.5",
            ("methods.veto.placement.gpus: 0.5", "one share for all trials"),
        ),
        (
            "runtime.placement.mode=inlin",
            ("runtime.placement.mode: 'inlin'", "did you mean inline?"),
        ),
        (
            "methods.vanilla.placement=colocate",
            ("methods.vanilla.placement.mode: 'colocate'", "colocated, split"),
        ),
        ("runtime.placement.cpus=0", ("runtime.placement.cpus: 0", "> 0")),
        ("runtime.keep=none", ("runtime.keep: 'none'", "best, all")),
        ("engine.dtype=float16", ("engine.dtype: 'float16'", "float32, bfloat16")),
        ("training.objective=tial", ("training.objective: 'tial'", "did you mean tail?")),
        ("name=My Sweep", ("name: 'My Sweep'", "lower-case letters")),
    ],
)
def test_values_out_of_range(
    override: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert_names(complaint(capsys, "plan", QUICKSTART, override), *words)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("methods.sft_warmup.K=7", ("methods.sft_warmup.K: 7", "training.sft.checkpoints [15]")),
        ("training.sft.checkpoints=[99]", ("training.sft.checkpoints: [99]", "between 1 and 15")),
        (
            "training.objective=tail",
            ("training.objective (with method veto): 'tail'", "renormalized"),
        ),
    ],
)
def test_settings_that_contradict_each_other(
    override: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert_names(complaint(capsys, "plan", QUICKSTART, override), *words)


SEVERAL = ("engine.sampler=sglang", "engine.trainer=verl")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ("mode=split", "gpus=1"),
            (".mode: 'split'", "inline or colocated", "role_gpus, which gives each role its own"),
        ),
        (("mode=split", "gpus=4", "role_gpus.rollout=1"), (".gpus: 4", "3, the sum of role_gpus")),
        (
            ("mode=colocated", "gpus=2"),
            (".mode: 'colocated'", "inline, or split with role_gpus", "actors can share one"),
        ),
        (("gpus=3",), (".gpus: 3", "a divisor of the 4 heads, 2 KV heads", "arithmetic's student")),
        (
            ("mode=split", "role_gpus.rollout=3"),
            (".role_gpus.rollout: 3", "a divisor of the 4 heads"),
        ),
    ],
)
def test_gpus_that_a_placement_cannot_give(
    overrides: tuple[str, ...], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    placement = [f"runtime.placement.{override}" for override in overrides]
    assert_names(complaint(capsys, "plan", QUICKSTART, *placement, *SEVERAL), *words)


def test_an_engine_of_one_device_gets_one_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    own = [f"runtime.placement.{given}" for given in ("mode=split", "role_gpus.learner=2")]
    line = complaint(capsys, "plan", QUICKSTART, *own)
    assert_names(line, "engine.trainer: 'torch'", "verl", "torch uses one device", "2 GPUs")
    answers = [
        "runtime.placement.mode=split",
        "runtime.placement.role_gpus.teacher=2",
        "engine.trainer=verl",
    ]
    line = complaint(capsys, "plan", QUICKSTART, *answers)
    assert_names(
        line, "engine.sampler: 'torch'", "sglang"
    )  # the teacher of the supervised stage answers on it
    assert (
        load_experiment(QUICKSTART, [*answers, "methods.sft_warmup=null"]).runtime.placement.gpus
        == 4
    )


@pytest.mark.parametrize("override", ["training.steps", "=3"])
def test_overrides_without_key_or_value(override: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = complaint(capsys, "plan", QUICKSTART, override)
    assert_names(line, f"override: {override!r}", "key=value")


@pytest.mark.parametrize("override", ["training.steps=[1", "training.steps=${nowhere}"])
def test_overrides_that_cannot_be_read(override: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert_names(complaint(capsys, "plan", QUICKSTART, override), f"override: {override!r}")


@pytest.mark.parametrize("cpus", ["two", "null", "[1]"])
def test_a_methods_own_placement_has_types_too(
    cpus: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = complaint(capsys, "plan", QUICKSTART, f"methods.vanilla.placement.cpus={cpus}")
    assert_names(line, "methods.vanilla.placement.cpus", "a number")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["methods=[vanilla,skd]"],
            ("methods: ['vanilla', 'skd']", "a mapping, for example {vanilla: {}, skd: {K:"),
        ),
        (["setups=arithmetic"], ("setups: 'arithmetic'", "for example [arithmetic]")),
        (["seeds=5"], ("seeds: 5", "for example [0, 1, 2, 3, 4]")),
        (["training.steps=0"], ("training.steps: 0", "≥ 1")),
        (["training.steps=10", "training.steps=20"], ("training.steps: given twice",)),
        ([f"training.steps={10**19}"], (f"training.steps: {10**19}", "≤ 1,000,000")),
        (["training.steps=9" + "0" * 5000], ("override: 'training.steps=9000", "…", "4300 digits")),
        (["training.steps=10000000"], ("training.steps: 10000000", "≤ 1,000,000")),
        (["name=" + "[" * 2000 + "]" * 2000], ("override: 'name=[[[", "less nesting")),
        (["name=&x [*x]"], ("override: 'name=&x [*x]'", "no anchor that stands in itself")),
        (["--seeds", "3"], ("--seeds: unknown option", "seeds=[0,1,2]")),
        (["--training.steps=3"], ("--training.steps: unknown option", "training.steps=3")),
        (["--rums", "x"], ("--rums: unknown option", "did you mean --runs?")),
        (["--runs"], ("--runs: expected one argument",)),
    ],
    ids=lambda value: value[0][:30],
)
def test_what_would_be_right(
    arguments: list[str], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert_names(complaint(capsys, "plan", QUICKSTART, *arguments), *words)


def test_a_placement_may_be_its_mode(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        load_experiment(QUICKSTART, ["runtime.placement=split"]).runtime.placement.mode == "split"
    )
    line = complaint(capsys, "plan", QUICKSTART, "runtime.placement=spilt")
    assert_names(line, "runtime.placement.mode: 'spilt'", "did you mean split?")


# --- command lines ---


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("", ("no COMMAND given", "plan, submit", "trb --help")),
        ("submt", ("'submt'", "did you mean submit?")),
        ("submit", ("EXP.yaml is missing", "trb submit", "EXP.yaml [key=value ...]")),
        ("probe", ("no PROBE given", "continuation")),
        ("probe contination", ("'contination'", "did you mean continuation?")),
        ("table x.yaml --format html", ("--format: 'html'", "md, tex, csv, json")),
        ("grade a b", ("'b'", "trb grade")),
        ("grade", ("FILE.jsonl is missing", "trb grade")),
        (
            "eval m --setup arithmetic --benchmarks gsm8k --limit 10000000000000000000",
            ("--limit: '1000", "18 digits"),
        ),
        (
            "eval m --setup arithmetic --benchmarks gsm8k --seed -1",
            ("--seed: '-1'", "a whole number ≥ 0"),
        ),
        ("plan quickstrat.yaml", ("quickstrat.yaml: no such file", "did you mean quickstart?")),
        ("plan nope.yaml", ("nope.yaml: no such file", "quickstart")),
    ],
)
def test_command_lines(
    command: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert_names(complaint(capsys, *command.split()), *words)


def test_a_value_that_came_from_a_file_is_traced_to_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_sweep(tmp_path, training={"top_k": 0})
    assert_names(
        complaint(capsys, "plan", path),
        "training.top_k: 0",
        tmp_path / "setups" / "tiny.yaml",
    )


# --- experiment files ---


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ("setups", "at least one of arithmetic")),
        ("setups: [1\n", ("line 2", "not valid YAML")),
        ("setups: [arithmetic]\nname: a\nname: b\n", ("line 3", "found duplicate key name")),
        (
            "setups: [arithmetic]\nmethods: {vanilla: {}, vanilla: {}}\n",
            ("line 2", "found duplicate key vanilla"),
        ),
        ("\tsetups: []\n", ("line 1", "'\\t'", "spaces")),
        ("- arithmetic\n", ("list", "a mapping of keys to values")),
        ("setups: [arithmetic]\nname: ${nowhere}\n", ("nowhere",)),
        ("setups: [arithmetic]\n", ("methods: {}", "at least one of trust_region, vanilla")),
        ("setups: [null]\nmethods: {vanilla: {}}\n", ("setups[0]: no value", "text")),
    ],
)
def test_broken_experiment_files(
    text: str, words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    line = complaint(capsys, "plan", path)
    assert_names(line, *words)
    if "line" in words[0]:
        assert_names(line, path)


@pytest.mark.parametrize(
    "methods", ["{1: {}}", "{vanilla: {1: 2}}", "{vanilla: {placement: {1: 2}}}"]
)
def test_keys_that_are_not_text(
    methods: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "numbers.yaml"
    path.write_text(f"setups: [arithmetic]\nmethods: {methods}\n")
    assert_names(complaint(capsys, "plan", path), "methods.", "1: unknown")


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert_names(
        complaint(capsys, "plan", tmp_path / "nowhere.yaml"),
        tmp_path / "nowhere.yaml",
        "no such file",
    )


def test_no_such_file_and_nothing_shipped(capsys: pytest.CaptureFixture[str]) -> None:
    line = complaint(capsys, "plan", "quikstart")
    assert_names(line, "quikstart: no such file", "paper, ", "did you mean quickstart?")


def test_a_folder_instead_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert_names(complaint(capsys, "plan", tmp_path), tmp_path, "a folder without experiment.yaml")


def test_a_file_that_is_not_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    assert_names(
        complaint(capsys, "plan", tmp_path / "binary.yaml"),
        "binary.yaml",
        "not a readable YAML file",
    )


# --- setups ---


def write_sweep(folder: Path, **changes: Any) -> Path:
    """A vanilla experiment with the tiny setup changed at its top-level keys."""
    (folder / "setups").mkdir(exist_ok=True)
    (folder / "setups" / "tiny.yaml").write_text(
        yaml.safe_dump(copy.deepcopy(TINY_SETUP) | changes)
    )
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump({"setups": ["tiny"], "methods": {"vanilla": {}}}))
    return path


def model(
    path: Path | str = "/nowhere/model", revision: str = SHA, **changes: Any
) -> dict[str, Any]:
    """A setup's model that is loaded instead of made."""
    return {"path": str(path), "revision": revision, "eos": 45, "shape": TINY_SHAPE, **changes}


def recipe(**changes: Any) -> dict[str, Any]:
    return {"eos": 45, "shape": TINY_SHAPE, "recipe": changes}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"trainin": {}}, ("trainin: unknown key", "did you mean training?")),
        (
            {"training": {"optimizer": {"lrr": 1}}},
            ("training.optimizer.lrr: unknown key", "did you mean lr?"),
        ),
        (
            {"student": recipe(updatez=1)},
            ("student.recipe.updatez: unknown key", "did you mean updates?"),
        ),
        ({"student": recipe(updates="many")}, ("student.recipe.updates: 'many'", "a whole number")),
        ({"student": recipe(wrong_step=1.5)}, ("student.recipe.wrong_step: 1.5",)),
        (
            {"student": recipe(updates=1, dtype="bfloat16")},
            ("tiny.student.recipe.dtype: 'bfloat16'", "float32 where"),
        ),
        ({"student": recipe() | {"eos": 47}}, ("tiny.student.eos: 47", "between 0 and 46")),
        (
            {"student": {"eos": 45, "shape": TINY_SHAPE}},
            ("tiny.student", "exactly one of path", "recipe"),
        ),
        ({"student": model(recipe={})}, ("tiny.student", "exactly one of path", "recipe")),
        ({"teacher": model(revision="main")}, ("tiny.teacher.revision: 'main'", "40 hex digits")),
        (
            {"student": recipe() | {"shape": TINY_SHAPE | {"layers": 0}}},
            ("tiny.yaml: student.shape.layers: 0", "≥ 1"),
        ),
        ({"tokenizer": "words"}, ("tiny.yaml: tokenizer: 'words'", "characters, bytes")),
        (
            {"vocabulary": {"size": 56, "valid": 57}},
            ("tiny.vocabulary.valid: 57", "between 1 and size 56"),
        ),
        ({"data": {"source": "json"}}, ("data.source: 'json'", "did you mean jsonl?")),
        ({"prompt": {"kind": "chatty"}}, ("prompt.kind: 'chatty'", "did you mean chat?")),
    ],
)
def test_mistakes_in_a_setup(
    changes: dict[str, Any],
    words: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert_names(complaint(capsys, "plan", write_sweep(tmp_path, **changes)), *words)


# --- `trb submit` refuses before anything starts ---


def refused(capsys: pytest.CaptureFixture[str], experiment: Path, *overrides: str) -> str:
    """The line of a submit that must leave nothing behind."""
    runs = experiment.parent / "runs"
    line = complaint(capsys, "submit", experiment, *overrides, "--runs", runs)
    assert not runs.exists() or list(runs.iterdir()) == []
    return line


def write_model(folder: Path, config: str = "", **changes: Any) -> dict[str, Any]:
    """A model folder of nothing but its config, declared by its true sha256."""
    folder.mkdir()
    (folder / "config.json").write_text(config or json.dumps(MODEL_CONFIG | changes))
    return model(folder, folder_sha256(folder))


def test_no_model_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, write_sweep(tmp_path, teacher=model(tmp_path / "gone")))
    assert_names(line, tmp_path / "gone", "no such model folder")


def test_another_model_than_declared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    declared = write_model(tmp_path / "model")
    (tmp_path / "model" / "extra.txt").write_text("changed")
    line = refused(capsys, write_sweep(tmp_path, student=declared))
    assert_names(line, tmp_path / "model", folder_sha256(tmp_path / "model"), declared["revision"])


def test_student_and_teacher_with_different_vocabularies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    student, teacher = (
        write_model(tmp_path / "student"),
        write_model(tmp_path / "teacher", vocab_size=60),
    )
    line = refused(capsys, write_sweep(tmp_path, student=student, teacher=teacher))
    assert_names(line, "tiny.teacher", "60", "56", "student and teacher alike")


def test_another_shape_than_declared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(
        capsys, write_sweep(tmp_path, student=write_model(tmp_path / "model", hidden_size=32))
    )
    assert_names(line, "tiny.student.shape.hidden: 16", "32")


@pytest.mark.parametrize("config", ["{", "[1]"])
def test_a_broken_model_config(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(capsys, write_sweep(tmp_path, student=write_model(tmp_path / "model", config)))
    assert_names(line, "tiny.student", tmp_path / "model" / "config.json")


def test_no_data_file_and_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    line = refused(capsys, write_sweep(tmp_path, evaluation=AMC))
    assert_names(
        line, f"{NO_MIRROR}/QwenLM", "cannot be had", "`trb data fetch FOLDER`", "data_dir=FOLDER"
    )
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("from_environment", [False, True])
def test_no_such_data_file(
    from_environment: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    overrides = () if from_environment else (f"data_dir={tmp_path / 'nowhere'}",)
    monkeypatch.setenv(
        "TRB_DATA_DIR", str(tmp_path / ("nowhere" if from_environment else "elsewhere"))
    )
    data = {
        "source": "jsonl",
        "files": [{"file": "own.jsonl", "sha256": SHA}],
    }  # which nothing is known to fetch
    line = refused(capsys, write_sweep(tmp_path, data=data), *overrides)
    assert_names(line, tmp_path / "nowhere" / "own.jsonl", "no such file")


CONTENTS = [
    (b'{"id": "1", "problem": "1+1", "answer": "2"}\n', ("sha256", "declared")),
    (b'{"id": "1"}\n{"id": \n', ("line 2", "not valid JSON")),
    (b"[1]\n", ("line 1", "a JSON object")),
    (b"\xff\n", ("UTF-8",)),
]


@pytest.mark.parametrize(("content", "words"), CONTENTS)
def test_an_altered_benchmark_file(
    content: bytes, words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "eval" / "amc23.jsonl"
    file.parent.mkdir()
    file.write_bytes(content)
    line = refused(capsys, write_sweep(tmp_path, evaluation=AMC), f"data_dir={tmp_path}")
    assert_names(line, file, *words)


# The absent model in these is a mistake too; data are checked first, and nothing starts if they are
# not.
@pytest.mark.parametrize(("content", "words"), CONTENTS)
def test_an_altered_training_file(
    content: bytes, words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.jsonl").write_bytes(content)
    data = {"source": "jsonl", "files": [{"file": "train.jsonl", "sha256": SHA}]}
    line = refused(
        capsys, write_sweep(tmp_path, data=data, student=model()), f"data_dir={tmp_path}"
    )
    assert_names(line, tmp_path / "train.jsonl", *words)


@pytest.mark.parametrize("source", ["jsonl", "openthoughts"])
def test_no_training_data_named(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(capsys, write_sweep(tmp_path, data={"source": source}, student=model()))
    assert_names(line, "data.files" if source == "jsonl" else "data.path")


# --- other commands ---


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"gold": "1", "generation": "1"}\n{"gold": \n', (":2", "not JSON")),
        ('["1", "1"]\n', (":1", "expected an object with 'gold' and 'generation'")),
        ('{"gold": "1"}\n', (":1", "'generation' is missing", "'gold'")),
        ('{"gold": "1", "generation": 1}\n', (":1", "'generation' is 1", "a string")),
        ('{"gold": [1], "generation": "1"}\n', (":1", "gold")),
    ],
)
def test_grading_broken_rows(
    content: str, words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(content)
    assert_names(complaint(capsys, "grade", file), file, *words)


def test_grading_what_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert_names(
        complaint(capsys, "grade", tmp_path / "rows.jsonl"),
        tmp_path / "rows.jsonl",
        "cannot be read",
    )
    assert_names(complaint(capsys, "grade", tmp_path), tmp_path, "cannot be read")


@pytest.mark.parametrize("out", ["nowhere/rows.jsonl", "folder"])
def test_grading_into_nowhere(out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "rows.jsonl").write_text('{"gold": "1", "generation": "\\\\boxed{1}"}\n')
    assert_names(
        complaint(capsys, "grade", tmp_path / "rows.jsonl", "--out", tmp_path / out), tmp_path / out
    )


def test_table_takes_one_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], [QUICKSTART, "--results", tmp_path / "results.csv"]):
        assert_names(
            complaint(capsys, "table", *arguments), "table", "EXP.yaml", "--results FILE.csv"
        )


def test_table_of_a_file_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = complaint(capsys, "table", "--results", tmp_path / "results.csv")
    assert_names(line, tmp_path / "results.csv", "method,setup,benchmark,pass_at_1")


def test_figures_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    line = complaint(capsys, "figures", QUICKSTART, "--runs", runs, "--out", tmp_path / "figures")
    assert_names(line, runs, "nothing to draw of quickstart yet", "trb submit")


def test_figures_into_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    line = complaint(
        capsys, "figures", QUICKSTART, "--runs", tmp_path / "runs", "--out", tmp_path / "file"
    )
    assert_names(line, tmp_path / "file")


@pytest.mark.parametrize("command", ["status", "table", "submit"])
def test_a_file_instead_of_the_runs_folder(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert_names(
        complaint(capsys, command, QUICKSTART, "--runs", tmp_path / "file"), tmp_path / "file"
    )


@pytest.mark.parametrize(
    ("benchmarks", "words"),
    [
        (
            "arithmetic_short:x",
            ("--benchmarks: 'arithmetic_short:x'", "KEY:n with a whole number n ≥ 1"),
        ),
        ("arithmetic_short:-1", ("--benchmarks: 'arithmetic_short:-1'", "n ≥ 1")),
        ("arithmetic_short:²", ("--benchmarks: 'arithmetic_short:²'", "n ≥ 1")),
        ("arithmetic_short:0", ("arithmetic_short.n: 0", "≥ 1")),
        (
            "aritmetic_short:4",
            ("aritmetic_short: unknown benchmark", "did you mean arithmetic_short?"),
        ),
        ("", ("--benchmarks: ''", "KEY:n with a whole number n ≥ 1")),
        ("amc23:4", ("data/eval/amc23.jsonl: no such file", "`trb data fetch data`")),
    ],
)
def test_evaluating_on_what_is_no_benchmark(
    benchmarks: str, words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = complaint(capsys, "eval", tmp_path, "--setup", "arithmetic", "--benchmarks", benchmarks)
    assert_names(line, *words)


def test_evaluating_a_model_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    line = complaint(
        capsys, "eval", gone, "--setup", "arithmetic", "--benchmarks", "arithmetic_short"
    )
    assert_names(line, gone, "a model folder, or a hub id with --revision")


def test_evaluating_a_run_instead_of_a_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run" / "checkpoints" / "step_000020").mkdir(parents=True)
    line = complaint(
        capsys,
        "eval",
        tmp_path / "run",
        "--setup",
        "arithmetic",
        "--benchmarks",
        "arithmetic_short",
    )
    assert_names(line, tmp_path / "run", "checkpoints/", "step_000020")


def test_evaluating_with_an_unknown_setup_or_no_problems(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("eval", tmp_path, "--benchmarks", "arithmetic_short", "--setup")
    assert_names(
        complaint(capsys, *arguments, "arithmetik"), "'arithmetik'", "did you mean arithmetic?"
    )
    assert_names(complaint(capsys, *arguments, "arithmetic", "--limit", "0"), "limit: 0", "≥ 1")


@pytest.mark.parametrize("drafted", ["0", "-1"])
def test_a_draft_holds_a_token(
    drafted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = complaint(
        capsys,
        "plan",
        write_experiment(tmp_path, {"vanilla": {}}),
        f"runtime.draft_length={drafted}",
    )
    assert_names(line, f"runtime.draft_length: {drafted}: expected", "≥ 1")


def test_a_draft_that_is_longer_than_the_engine_can_judge(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_experiment(tmp_path, {"vanilla": {}})
    line = complaint(capsys, "plan", path, "engine.sampler=sglang", "runtime.draft_length=17")
    assert_names(line, "runtime.draft_length: 17: expected ≤ 16 where sglang samples, as in tiny")
    load_experiment(path, ["engine.sampler=sglang", "runtime.draft_length=16"])
    load_experiment(path, ["engine.sampler=torch", "runtime.draft_length=17"])


# --- the command as a process ---


def refused_process(*arguments: str | Path) -> str:
    done = trb(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("trb: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_a_process_refuses_an_override() -> None:
    assert_names(
        refused_process("plan", QUICKSTART, "training.stepz=3"), "training.stepz: unknown key"
    )


def test_a_process_refuses_to_submit(tmp_path: Path) -> None:
    assert "TRB_DATA_DIR" not in environment()
    line = refused_process(
        "submit", write_sweep(tmp_path, evaluation=AMC), "--runs", tmp_path / "runs"
    )
    assert_names(line, "cannot be had", "`trb data fetch FOLDER`")


def test_a_process_refuses_to_evaluate_a_folder_without_a_model(tmp_path: Path) -> None:
    options = ("--setup", "arithmetic", "--benchmarks", "arithmetic_short:1", "--limit", "1")
    line = refused_process("eval", tmp_path, *options, "--runs", tmp_path / "runs")
    assert_names(line, tmp_path)


# --- what was meant is named ---


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["plan", QUICKSTART, "lr=1e-4"], "lr: unknown key, did you mean training.optimizer.lr?"),
        (["plan", QUICKSTART, "steps=4"], "steps: unknown key, did you mean training.steps?"),
        (
            ["plan", QUICKSTART, "seeds=[0,", "1]"],
            "override: 'seeds=[0,': expected with the words after it in quotes",
        ),
        (
            ["plan", "quickstart training.steps=4"],
            "no such file: expected quickstart, with each override as a word of its own",
        ),
        (["plan", QUICKSTART, "--gpus", "8.5"], "--gpus: '8.5': expected a whole number"),
        (
            ["table", QUICKSTART, "--compare", "vanilla", "vs", "veto"],
            "'vanilla vs veto': expected A,B: vanilla,veto",
        ),
        (["plan", QUICKSTART, "methods.vanila={}"], "did you mean vanilla?"),
    ],
)
def test_what_was_meant_is_named(
    words: list[str | Path], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert meant in complaint(capsys, *words)


def test_a_method_is_known_by_its_label_in_files_and_overrides(tmp_path: Path) -> None:
    path = write_sweep(tmp_path)
    raw = yaml.safe_load(path.read_text()) | {
        "methods": {"Vanilla": {}, "TRB": {"epsilon0": [0.05], "K": [5]}}
    }
    path.write_text(yaml.safe_dump(raw))
    experiment = load_experiment(path, ["methods.trb.K=3"])
    assert experiment.methods == {"vanilla": {}, "trust_region": {"epsilon0": [0.05], "K": [3]}}
    origins = {key: place for key, _, place in resolved(path, ["methods.trb.K=3"])}
    assert (origins["methods.trust_region.K"], origins["methods.trust_region.epsilon0"]) == (
        "override",
        str(path),
    )


def test_a_method_under_two_names_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_sweep(tmp_path)
    raw = yaml.safe_load(path.read_text()) | {
        "methods": {"trust_region": {"epsilon0": 0.1, "K": 5}, "TRB": None}
    }
    path.write_text(yaml.safe_dump(raw, sort_keys=False))
    assert_names(
        complaint(capsys, "plan", path),
        "methods.TRB: another name of trust_region: expected every method once",
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["submit", "quickstart", "--watch"], ["--watch", "trb status EXP.yaml --watch"]),
        (["watch", "quickstart"], ["'watch'", "trb status EXP.yaml --watch"]),
        (["table", "quickstart", "--compare", "vanilla vs veto"], ["--compare", "vanilla,veto"]),
    ],
)
def test_words_that_belong_elsewhere(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert_names(complaint(capsys, *arguments), *words)


def test_an_experiment_file_with_the_other_suffix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "q.yaml").write_text("setups: [arithmetic]\n")
    assert_names(
        complaint(capsys, "plan", tmp_path / "q.yml"), f"did you mean {tmp_path / 'q.yaml'}?"
    )
