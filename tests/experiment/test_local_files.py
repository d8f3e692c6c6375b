"""Benchmarks and models of one's own: files named by their path, with everything else read off
them.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from analysis.table.formats import FORMATS
from analysis.table.model import results_table
from orchestrator.checks import catalog
from orchestrator.checks import experiment as checks
from orchestrator.checks.check import Check, Found, made
from orchestrator.checks.experiment import CheckedSetup, check_models
from orchestrator.cli import main
from orchestrator.commands import plan as plan_command
from orchestrator.commands import submit as submit_command
from orchestrator.commands.detach import lasting_console
from orchestrator.config import Experiment, PromptTemplate, Setup
from orchestrator.data.files import folder_sha256
from orchestrator.errors import UserError
from orchestrator.experiment.evaluation_protocol import evaluation_ids
from orchestrator.experiment.load import RECORD, load_experiment, load_setup
from orchestrator.experiment.units import expand
from orchestrator.monitor import status
from orchestrator.pair import Shape
from orchestrator.planning import plan, view
from orchestrator.selection.results_folder import claim
from orchestrator.selection.study import Study
from orchestrator.sweep.prepare import prepare
from tests.checks import fakes
from tests.fake_runs import units_of, write_run
from tests.sweeps import ROOT, TINY_SETUP, trb_here, trb_shows, write_experiment
from tests.without_ray import made_here

SHIPPED = ROOT / "experiments" / "models"
ROWS = [{"question": f"{i}+1", "answer": str(i + 1)} for i in range(5)]
CONFIG = {
    "vocab_size": 64,
    "num_hidden_layers": 3,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 96,
    "tie_word_embeddings": True,
    "model_type": "qwen3",
}


def weights(layers: int = 3, tied: bool = True) -> bytes:
    """A safetensors file of zeros with all tensors of a Qwen3 model of CONFIG's sizes."""
    shapes = {"model.embed_tokens.weight": [64, 32], "model.norm.weight": [32]}
    in_layer = {
        "input_layernorm": [32],
        "post_attention_layernorm": [32],
        "self_attn.q_norm": [8],
        "self_attn.k_norm": [8],
        "self_attn.q_proj": [32, 32],
        "self_attn.k_proj": [16, 32],
        "self_attn.v_proj": [16, 32],
        "self_attn.o_proj": [32, 32],
        "mlp.gate_proj": [96, 32],
        "mlp.up_proj": [96, 32],
        "mlp.down_proj": [32, 96],
    }
    for layer in range(layers):
        for name, shape in in_layer.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    if not tied:
        shapes["lm_head.weight"] = [64, 32]
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(end)


def names_of(file: bytes) -> list[str]:
    return list(json.loads(file[8 : 8 + int.from_bytes(file[:8], "little")]))


WEIGHTS = weights()
SHAPE = Shape(layers=3, hidden=32, heads=4, kv_heads=2, head_dim=8, ffn=96, tied=True)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    # One for all tests, since a comparison of passes takes seconds.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.delenv("TRB_DATA_DIR", raising=False)


def write_rows(path: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def with_benchmark(folder: Path, key: str = "mine", **run: Any) -> Experiment:
    benchmarks = {"arithmetic_short": None, key: run}
    return load_experiment(
        write_experiment(folder, {"vanilla": {}}, evaluation={"benchmarks": benchmarks})
    )


# --- benchmarks ---


def test_a_file_is_a_benchmark_under_any_key(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "my.jsonl")
    experiment = with_benchmark(tmp_path, "my-2.set", path=str(path), n=4)
    run = experiment.setups["tiny"].evaluation.benchmarks["my-2.set"]
    assert (run.problems, run.revision) == (5, hashlib.sha256(path.read_bytes()).hexdigest())
    [note] = experiment.notes
    assert note.endswith(f"to pin it: evaluation.benchmarks.my-2.set.revision={run.revision}")
    made = view.totals(plan.make_plan(experiment))
    assert made["evaluation"]["generations"] == 6 * 5 * 4


def test_its_content_is_its_identity(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "my.jsonl")
    first = evaluation_ids(with_benchmark(tmp_path, path=str(path)).setups["tiny"])
    moved = write_rows(tmp_path / "elsewhere.jsonl")
    pinned = with_benchmark(
        tmp_path, path=str(moved), revision=hashlib.sha256(path.read_bytes()).hexdigest()
    )
    assert evaluation_ids(pinned.setups["tiny"]) == first
    assert pinned.notes == ()
    write_rows(path, ROWS[:4])
    assert evaluation_ids(with_benchmark(tmp_path, path=str(path)).setups["tiny"]) != first


def with_training_file(folder: Path, entry: dict[str, str]) -> Path:
    """An experiment file whose setup trains on `train.jsonl`, named by `entry`, in its folder."""
    path = write_experiment(folder, {"vanilla": {}}, data_dir=str(folder))
    setup = TINY_SETUP | {"data": {"source": "jsonl", "files": [entry]}}
    (folder / "setups" / "tiny.yaml").write_text(yaml.safe_dump(setup))
    return path


def ids(path: Path) -> list[str]:
    return [unit.id for unit in expand(load_experiment(path))]


def test_a_training_file_without_its_sha256_counts_by_its_content(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "train.jsonl")
    content = hashlib.sha256(rows.read_bytes()).hexdigest()
    path = with_training_file(tmp_path, {"file": "train.jsonl"})
    experiment = load_experiment(path)
    setup = experiment.setups["tiny"]
    checks.training_files(CheckedSetup("tiny", setup, tmp_path, data_dir=experiment.data_dir))
    [note] = experiment.notes
    assert note.startswith(f"tiny.data.files[0]: the sha256 of {rows}")
    assert note.endswith(f"to pin it: sha256: {content}")
    first = ids(path)
    assert ids(with_training_file(tmp_path, {"file": "train.jsonl", "sha256": content})) == first
    write_rows(rows, ROWS[:4])
    assert ids(with_training_file(tmp_path, {"file": "train.jsonl"})) != first


def test_a_training_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=rf"{tmp_path}/train\.jsonl: no such file: expected a data_dir"
    ):
        load_experiment(with_training_file(tmp_path, {"file": "train.jsonl"}))


def test_local_thoughts_without_a_revision(tmp_path: Path) -> None:
    folder = tmp_path / "thoughts"
    folder.mkdir()
    (folder / "rows.jsonl").write_text("{}\n")
    path = write_experiment(tmp_path, {"vanilla": {}})
    setup = TINY_SETUP | {"data": {"source": "openthoughts", "path": str(folder)}}
    (tmp_path / "setups" / "tiny.yaml").write_text(yaml.safe_dump(setup))
    data = load_experiment(path).setups["tiny"].data
    assert data.revision == folder_sha256(folder)


@pytest.mark.parametrize("pins", [True, False])
def test_pins_are_printed_where_they_are_asked_for(
    pins: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(tmp_path / "train.jsonl")
    path = with_training_file(tmp_path, {"file": "train.jsonl"})
    asked = ["plan", path, "--runs", tmp_path / "runs", "training.steps=1"]
    asked += ["--pins"] if pins else []
    code, _, err = trb_here(capsys, *asked)
    assert code == 0
    assert ("to pin it" in err) == pins


@pytest.mark.parametrize("command", ["plan", "submit"])
@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"problem": "1+1", "answer": "2", "error": "-1"}, "error is '-1'"),
        ({"problem": "1+1", "answer": "2", "unit": ["cm"]}, "unit is ['cm']"),
        ({"problem": "\ud800", "answer": "2"}, "problem holds '\\ud800'"),
        ({"text": "1+1", "answer": "2"}, "no field problem, question, "),
    ],
)
def test_plan_and_submit_refuse_the_same_training_rows(
    command: str,
    row: dict[str, Any],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = write_rows(tmp_path / "train.jsonl", [ROWS[0], row])
    path = with_training_file(tmp_path, {"file": "train.jsonl"})
    code, _, err = trb_here(capsys, command, path, "--runs", tmp_path / "runs")
    assert code == 2
    assert f"{rows} line 2: {words}" in err.splitlines()[-1]


def test_scores_on_it_stand_in_status_and_table(tmp_path: Path) -> None:
    write_rows(tmp_path / "my.jsonl")
    experiment = with_benchmark(tmp_path, path=str(tmp_path / "my.jsonl"), n=4, title="My sums")
    units, runs = expand(experiment), tmp_path / "runs"
    write_run(runs, experiment, units_of(units, "vanilla")[0], {2: [1], 4: [3]}, steps=10)
    found = {
        unit.kind: unit.score for unit in status.overview(Study(experiment, units, runs)).units
    }
    assert found["trial"] == 0.75
    table = json.loads(FORMATS["json"](results_table(Study(experiment, units, runs))))
    assert [column["benchmark"] for column in table["columns"]] == ["avg", "mine"]


@pytest.mark.parametrize(
    ("key", "run", "words"),
    [
        ("mine", {"n": 4}, r"mine: unknown benchmark: .* arithmetic_short, .* path=FILE"),
        ("math50", {"n": 4}, r"math50: unknown .*did you mean math500\?"),
        ("mine", {"path": "gone.jsonl"}, r"mine.path: 'gone.jsonl': .* \(not in /.*\)"),
        ("mine", {"path": "my.jsonl", "revision": "abc"}, "mine.revision: 'abc': .* sha256 of"),
        ("mine", {"path": "half.jsonl"}, "half.jsonl line 1: no field answer"),
        ("mine", {"path": "a/b"}, "mine.revision: None: .* commit .* of the hub dataset a/b"),
        ("mine", {"path": "a/b", "revision": "0" * 40}, "mine.problems: None: expected"),
        ("my set", {"path": "my.jsonl"}, "evaluation.benchmarks: 'my set': expected letters"),
        ("avg", {"path": "my.jsonl"}, "evaluation.benchmarks: 'avg': expected letters"),
        ("../up", {"path": "my.jsonl"}, "evaluation.benchmarks: '../up': expected letters"),
        ("amc23", {"path": "my.jsonl", "problems": 5}, "amc23.problems: 5: expected 40"),
        ("mine", {"path": "empty.jsonl"}, "mine.problems: 0: expected the number of its rows"),
        ("mine", {"path": "broken.jsonl"}, "broken.jsonl line 1: not valid JSON"),
    ],
)
def test_benchmarks_that_are_none(
    key: str, run: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "my.jsonl")
    write_rows(tmp_path / "empty.jsonl", [])
    write_rows(tmp_path / "half.jsonl", [{"problem": "1+1"}])
    (tmp_path / "broken.jsonl").write_text("{\n")
    with pytest.raises(UserError, match=words):
        with_benchmark(tmp_path, key, **run)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"q": "1+1", "answer": "2"}, "line 1: no field problem, question, prompt, "),
        ({"problem": "1+1", "a": "2"}, "line 1: no field answer, final_answer, "),
    ],
)
def test_rows_that_lack_a_field(
    row: dict[str, str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_rows(tmp_path / "my.jsonl", [row])
    file = write_experiment(
        tmp_path, {"vanilla": {}}, evaluation={"benchmarks": {"mine": {"path": str(path)}}}
    )
    code, _, err = trb_here(capsys, "submit", file, "--runs", tmp_path / "runs")
    assert code == 2
    assert f"{path} {words}" in err.splitlines()[-1]


# --- models ---


def write_model(folder: Path, eos: Any = 60, **config: Any) -> Path:
    folder.mkdir(parents=True)
    vocabulary = {chr(33 + i): i for i in range(50)}
    added = [{"id": 60, "content": "<end>"}, {"id": 61, "content": "<|im_end|>"}]
    documents = {
        "config": CONFIG | config,
        "generation_config": {"eos_token_id": eos},
        "tokenizer": {"model": {"vocab": vocabulary}, "added_tokens": added},
        "tokenizer_config": {"eos_token": "<|im_end|>"},
    }
    for name, document in documents.items():
        (folder / f"{name}.json").write_text(json.dumps(document))
    sizes = CONFIG | config
    stored = weights(sizes["num_hidden_layers"], sizes["tie_word_embeddings"])
    (folder / "model.safetensors").write_bytes(stored)
    return folder


def own_setup(
    folder: Path, student: dict[str, Any], teacher: dict[str, Any], **changes: Any
) -> Path:
    """An experiment on a setup of two models that says nothing else of them."""
    path = write_experiment(folder, {"vanilla": {}})
    left_out = ("tokenizer", "vocabulary", "student", "teacher")
    setup = {key: value for key, value in TINY_SETUP.items() if key not in left_out}
    (folder / "setups" / "tiny.yaml").write_text(
        yaml.safe_dump(setup | {"student": student, "teacher": teacher} | changes)
    )
    return path


@dataclass
class Pair:
    """Two model folders, and an experiment on them."""

    student: Path
    teacher: Path
    path: Path

    @property
    def experiment(self) -> Experiment:
        return load_experiment(self.path)

    @property
    def setup(self) -> Setup:
        return self.experiment.setups["tiny"]


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    student = write_model(tmp_path / "student")
    teacher = write_model(
        tmp_path / "teacher", [61, 60], num_hidden_layers=5, tie_word_embeddings=False
    )
    path = own_setup(tmp_path, {"path": str(student)}, {"path": str(teacher)})
    return Pair(student, teacher, path)


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def edit_json(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_local_pair_is_read_off_its_folders(pair: Pair) -> None:
    setup = pair.setup
    assert setup.student.shape == replace(SHAPE, parameters=39184)
    assert setup.teacher.shape == replace(SHAPE, layers=5, tied=False, parameters=65968)
    assert (setup.student.eos, setup.teacher.eos) == (60, [61, 60])
    assert (setup.vocabulary.size, setup.vocabulary.valid) == (64, 62)
    assert setup.student.revision == folder_sha256(pair.student)
    notes = load_experiment(pair.path).notes
    for note, role in zip(notes, ("student", "teacher"), strict=True):
        folder = getattr(pair, role)
        assert note.startswith(f"tiny.{role}: the sha256 of {folder}")
        assert note.endswith(f"revision: {folder_sha256(folder)}")


def test_adapters_of_a_folders_student_have_its_hidden_size_at_most(pair: Pair) -> None:
    grid = "methods.simple_opd={{K: [1], rank: [{}], lr: [0.01]}}"
    sft = "training.sft={updates: 1, checkpoints: [1]}"
    load_experiment(pair.path, [sft, grid.format(32)])
    with pytest.raises(UserError, match=r"^methods\.simple_opd\.rank: 33: expected ≤ 32"):
        load_experiment(pair.path, [sft, grid.format(33)])


def test_a_pair_that_reads_ids_differently_is_refused(pair: Pair, tmp_path: Path) -> None:
    edit(pair.teacher / "tokenizer.json", "<end>", "<stop>")
    message = "tiny: token 60 is '<end>' to the student and '<stop>' to the teacher"
    with pytest.raises(UserError, match=rf"^{message}.*\(1 of 52 ids differ\)$"):
        check_models("tiny", pair.setup, tmp_path / "runs")


def test_tokens_of_one_model_alone_make_no_difference(pair: Pair, tmp_path: Path) -> None:
    edit(
        pair.teacher / "tokenizer.json",
        '"added_tokens": [',
        '"added_tokens": [{"id": 62, "content": "<think>"}, ',
    )
    check_models("tiny", pair.setup, tmp_path / "runs")


def test_a_pair_of_which_one_is_made_here_is_compared_once_it_is_made(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    made = load_experiment(write_experiment(tmp_path, {"vanilla": {}}))
    teacher = Path(made_here(made, runs)["tiny"][1].path)
    others = shutil.copytree(teacher, tmp_path / "teacher")
    edit(others / "tokenizer.json", '"+"', '"plus"')
    own = {"path": str(others), "eos": 46}
    tokenizer = TINY_SETUP["tokenizer"]
    path = own_setup(tmp_path, TINY_SETUP["student"], own, tokenizer=tokenizer)
    setup = load_experiment(path).setups["tiny"]
    shutil.rmtree(runs)
    check_models("tiny", setup, runs)  # there is no student yet
    with pytest.raises(UserError, match=r"^tiny: token .* is '\+' to the student and 'plus' to"):
        prepare({"tiny": setup}, runs, lambda *_: None)


def test_finished_runs_of_models_that_are_gone_are_looked_at_by_their_results_folder(
    pair: Pair, tmp_path: Path
) -> None:
    experiment = load_experiment(pair.path)
    units = expand(experiment)
    folder = claim(Study(experiment, units, tmp_path / "runs"))
    shutil.rmtree(pair.student)
    shutil.rmtree(pair.teacher)
    with pytest.raises(UserError, match=r"student.path: .*a model folder"):
        load_experiment(pair.path)
    again = expand(load_experiment(folder / RECORD))
    assert [unit.id for unit in again] == [unit.id for unit in units]


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    """An experiment on copies of shipped models, whose teacher takes no system message."""
    for role in ("student", "teacher"):
        shutil.copytree(SHIPPED / f"arithmetic-{role}", tmp_path / role)
    template = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('none, please') }}{% endif %}"
    )
    template += "{{ messages[-1].content }}"
    edit_json(tmp_path / "teacher" / "tokenizer_config.json", chat_template=template)
    prompt = {"kind": "chat", "system": "1+1"}
    models = [{"path": str(tmp_path / role)} for role in ("student", "teacher")]
    return own_setup(tmp_path, *models, prompt=prompt)


def refused(command: str, path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The last line of a command that must be refused and leave nothing behind."""
    runs = path.parent / "runs"
    code, _, err = trb_here(capsys, command, path, "--runs", runs)
    assert code == 2
    assert not runs.exists() or list(runs.iterdir()) == []
    return err.splitlines()[-1].removeprefix("trb: ")


def test_prompt_and_chat_template_meet_before_ray_starts(
    shipped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = (
        "tiny.prompt.system: '1+1': expected null, since the teacher's chat template refuses a "
        "system message (none, please)"
    )
    assert refused("plan", shipped, capsys) == refused("submit", shipped, capsys) == line
    experiment = load_experiment(shipped)
    setup, runs = experiment.setups["tiny"], tmp_path / "runs"
    of = CheckedSetup("tiny", setup, runs, 1, experiment.data_dir)
    assert made(Check("tiny prompt", checks.prompt), of).detail == line
    checks.renders(replace(of, setup=replace(setup, prompt=PromptTemplate(kind="chat"))))
    (tmp_path / "teacher" / "tokenizer.json").write_text(
        json.dumps({"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": "x"}}})
    )
    with pytest.raises(UserError, match=r"^tiny\.teacher: .*its tokenizer cannot be opened \("):
        checks.renders(of)


def test_a_prompt_that_a_plan_cannot_render_is_said_with_setup_and_key(
    shipped: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_command, "renders", fakes.killed)
    assert refused("plan", shipped, capsys) == (
        "tiny.teacher: a prompt cannot be rendered: its process died with SIGKILL; its last line: "
        "tiny prompt, at most 600 s; look for `Out of memory` in dmesg: the host's memory may be "
        "too small"
    )
    monkeypatch.setattr(plan_command, "renders", fakes.sleeps)
    monkeypatch.setattr(plan_command, "RENDERED_WITHIN_S", 4.0)
    line = (
        "tiny.teacher: a prompt cannot be rendered: not done after 4 s, so it was ended; its last"
    )
    assert refused("plan", shipped, capsys).startswith(line)


def test_a_bug_in_the_rendering_of_a_plan_is_no_mistake_of_the_user(
    shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_command, "renders", fakes.raises)
    with pytest.raises(ValueError, match="a sentence") as raised:
        main(["plan", str(shipped), "--runs", str(tmp_path / "runs")])
    assert type(raised.value) is ValueError
    assert "in tiny prompt:\nTraceback" in raised.value.__notes__[0]


def test_the_doctor_shows_the_system_message_of_a_template(shipped: Path, tmp_path: Path) -> None:
    template = "{{ '1+' if messages[0].role != 'system' }}{% for m in messages %}{{ m.content }}{% endfor %}"
    edit_json(tmp_path / "teacher" / "tokenizer_config.json", chat_template=template)
    experiment = load_experiment(shipped)
    setup, runs = experiment.setups["tiny"], tmp_path / "runs"
    own = "the chat template adds a system message of its own: '1+'"
    of = CheckedSetup("tiny", setup, runs, 1, experiment.data_dir)
    given = checks.prompt(of)
    left_out = replace(setup, prompt=PromptTemplate(kind="chat"))
    added = checks.prompt(replace(of, setup=left_out))
    assert given.verdict == added.verdict == "ok"
    assert own not in given.detail
    assert added.detail.splitlines()[1] == own


def test_another_content_is_another_model(pair: Pair) -> None:
    before = pair.setup.student.revision
    (pair.student / "model.safetensors").write_bytes(b"other weights")
    assert pair.setup.student.revision == folder_sha256(pair.student) != before


def test_what_is_given_stands(pair: Pair, tmp_path: Path) -> None:
    given = {"path": str(pair.student), "eos": 3, "revision": "a" * 64, "shape": {"layers": 7}}
    path = own_setup(tmp_path, given, {"path": str(pair.teacher)})
    student = load_experiment(path).setups["tiny"].student
    assert (student.eos, student.revision) == (3, "a" * 64)
    assert student.shape == replace(SHAPE, layers=7, parameters=39184)


def test_without_generation_settings_the_tokenizer_says_what_ends_a_response(pair: Pair) -> None:
    (pair.student / "generation_config.json").unlink()
    assert pair.setup.student.eos == 61


@pytest.mark.parametrize(
    ("generation", "config", "template", "expected"),
    [
        ([60, 61], None, None, [61, 60]),  # the tokenizer's EOS closes, where no template tells
        ([60, 40, 61], 60, "{{ x }}<|im_end|>", [61, 60, 40]),  # as Llama 3
        ([61, 60], 61, "{{ x }}<end>", [60, 61]),  # as Gemma
        ([40, 41], [41, 42], None, [40, 41, 42]),
        (60, 41, None, [60, 41]),
        (None, [60], None, 60),
        ([60, 60], 60, None, 60),
        (None, None, None, 61),
        ([], [], None, 61),
    ],
)
def test_all_stop_ids_of_a_folder_are_the_models(
    generation: Any, config: Any, template: str | None, expected: Any, pair: Pair
) -> None:
    """Of a list that ends with the end of a turn, the end of the turn closes kept responses."""
    edit_json(pair.student / "generation_config.json", eos_token_id=generation)
    edit_json(pair.student / "config.json", eos_token_id=config)
    if template is not None:
        (pair.student / "chat_template.jinja").write_text(template)
    assert pair.setup.student.eos == expected
    edit_json(pair.student / "tokenizer_config.json", chat_template=template)
    assert pair.setup.student.eos == expected


def test_the_doctor_names_stop_ids_of_the_files_that_a_setup_leaves_out(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "check_models", lambda *_: None)
    edit_json(pair.student / "generation_config.json", eos_token_id=[60, 40, 41])

    def models(student: Any, teacher: Any) -> tuple[str, list[str]]:
        setup = pair.setup
        setup = replace(
            setup,
            student=replace(setup.student, eos=student),
            teacher=replace(setup.teacher, eos=teacher),
        )
        found = checks.models(CheckedSetup("tiny", setup, tmp_path, 1))
        return found.verdict, found.detail.splitlines()[1:]

    assert models([60, 40, 41], [60, 61]) == models([60, 40, 41], 61) == ("ok", [])
    line = "tiny.student.eos: 60: expected also 40, 41, as in "
    assert models(60, [61, 40, 41]) == ("warn", [f"{line}{pair.student}"])
    line = "tiny.teacher.eos: 60: expected also 61, as in "
    assert models([60, 40, 41], 60) == ("warn", [f"{line}{pair.teacher}"])


def test_a_submit_says_stop_ids_that_a_setup_leaves_out(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says what a check warns of, but nothing of models that it makes next."""
    monkeypatch.setattr(checks, "check_models", lambda *_: None)
    monkeypatch.setattr(catalog, "driver_checks", lambda _: [])
    chosen = [check for check in catalog.SUBMIT_CHECKS if check.name in ("models", "template")]
    monkeypatch.setattr(catalog, "SUBMIT_CHECKS", chosen[::-1])
    edit_json(pair.student / "generation_config.json", eos_token_id=[60, 40, 41])
    setup = pair.setup
    student = replace(setup.student, eos=60)
    said: list[str] = []

    def said_of(setup: Setup) -> str:
        experiment = replace(pair.experiment, setups={"tiny": setup})
        study = Study(experiment, [], tmp_path / "runs")
        job = submit_command.Submission(study, None, "", lasting_console(tmp_path))
        monkeypatch.setattr(submit_command.Submission, "say", lambda _, line: said.append(line))
        said.clear()
        submit_command._check(job)
        return "\n".join(said)

    line = f"tiny.student.eos: 60: expected also 40, 41, as in {pair.student}"
    assert line in said_of(replace(setup, student=student))
    assert said_of(replace(setup, student=replace(setup.student, eos=[60, 40, 41]))) == ""
    made = load_experiment(write_experiment(tmp_path / "made", {"vanilla": {}})).setups["tiny"]
    assert said_of(made) == ""


@pytest.mark.parametrize("ids", ["60", [60, "61"], True, [60, 1.5], {"id": 60}])
def test_stop_ids_that_are_none_are_refused_with_their_file(ids: Any, pair: Pair) -> None:
    edit_json(pair.student / "generation_config.json", eos_token_id=ids)
    with pytest.raises(UserError, match=r"^tiny\.student: eos_token_id: .*generation_config\.json"):
        _ = pair.setup


@pytest.mark.parametrize(
    ("student", "teacher", "identity"),
    [
        (45, 46, [45, 46]),
        ([45], [46], [45, 46]),
        (45, 45, [45, 45]),
        (45, [46, 45], [45, 46]),
        (45, [45], [45, 45]),
        ([45, 7], [46, 3], [[45, 7], [3, 46]]),
        ([7, 45], [3, 46, 7], [[7, 45], [3, 46]]),
    ],
)
def test_an_identity_has_the_stop_ids_that_change_the_training(
    student: Any, teacher: Any, identity: Any, tmp_path: Path
) -> None:
    setups = {
        role: TINY_SETUP[role] | {"eos": eos}
        for role, eos in (("student", student), ("teacher", teacher))
    }
    path = own_setup(tmp_path, **setups, **{k: TINY_SETUP[k] for k in ("tokenizer", "vocabulary")})
    experiment = load_experiment(path)
    found = [unit.identity["eos"] for unit in expand(experiment)]
    assert found == [identity] * len(found)
    assert [unit.id for unit in expand(load_experiment(path))] == [u.id for u in expand(experiment)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"eos": [60, "61"]}, r"tiny.yaml: student.eos: .*a whole number, or a list of different"),
        ({"eos": []}, r"tiny.yaml: student.eos: \[\]: expected a whole number, or a list"),
        ({"eos": [60, 60]}, r"tiny.yaml: student.eos: \[60, 60\]: expected"),
        ({"eos": True}, r"tiny.yaml: student.eos: True: expected a whole number"),
        ({"eos": None}, r"tiny.yaml: student.eos: no value: expected a whole number"),
        ({"eos": [60, 62]}, r"tiny.student.eos: 62: expected an id between 0 and 61"),
        ({"revision": 0}, "tiny.yaml: student.revision: 0: .*leave it out at first"),
        ({"revision": "0" * 64}, "tiny.student.revision: '000.*': expected left out at first"),
        ({"path": "./gone"}, r"tiny.student.path: './gone': expected a model folder in "),
        (
            {"path": "Qwen/Qwen3", "revision": "a" * 40},
            r"tiny.student.shape.layers: no value: expected .* ≥ 1",
        ),
        ({"pat": "x"}, "tiny.yaml: student.pat: unknown key"),
        ({"path": "studnet"}, "tiny.student.path: 'studnet'.*revision: COMMIT"),
    ],
)
def test_models_that_cannot_be_used(
    changes: dict[str, Any], words: str, pair: Pair, tmp_path: Path
) -> None:
    path = own_setup(tmp_path, {"path": str(pair.student)} | changes, {"path": str(pair.teacher)})
    with pytest.raises(UserError, match=words):
        load_experiment(path)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("config.json", "{", "tiny.student: .*config.json is missing or broken"),
        ("config.json", json.dumps(CONFIG | {"hidden_size": None}), "student.shape.hidden: None"),
        ("tokenizer.json", "{}", "tiny: .*tokenizer.json has no vocabulary"),
    ],
)
def test_folders_that_do_not_say(file: str, content: str, words: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "student")
    (folder / file).write_text(content)
    with pytest.raises(UserError, match=words):
        load_experiment(own_setup(tmp_path, {"path": str(folder)}, {"path": str(folder)}))


def test_a_setup_by_the_path_of_its_file(tmp_path: Path) -> None:
    write_experiment(tmp_path, {"vanilla": {}})
    assert load_setup(str(tmp_path / "setups" / "tiny.yaml")).title == "Tiny"


CUT, NONE_THERE = "/model.safetensors is cut off", ": No such file or directory"
INDEX = {"weight_map": dict.fromkeys(names_of(weights(5, tied=False)), "model-1-of-1.safetensors")}


@pytest.mark.parametrize(
    ("files", "words"),  # file → content, None where it is missing
    [
        ({"model.safetensors": None}, f"{{}}/model.safetensors{NONE_THERE}"),
        ({"model.safetensors": WEIGHTS[:-1]}, f"{{}}{CUT}"),
        ({"model.safetensors": WEIGHTS[:20]}, f"{{}}{CUT}"),
        ({"model.safetensors": b""}, "{}/model.safetensors is empty"),
        ({"model.safetensors": (2**62).to_bytes(8, "little") + WEIGHTS[8:]}, f"{{}}{CUT}"),
        ({"model.safetensors": WEIGHTS.replace(b"{", b"[")}, f"{{}}{CUT}"),
        (
            {"model.safetensors": None, "model.safetensors.index.json": json.dumps(INDEX).encode()},
            f"{{}}/model-1-of-1.safetensors{NONE_THERE}",
        ),
        (
            {"model.safetensors": None, "model.safetensors.index.json": b"{}"},
            "{}/model.safetensors.index.json is broken",
        ),
        (
            {
                "config.json": json.dumps(
                    CONFIG
                    | {"model_type": "lama", "num_hidden_layers": 5, "tie_word_embeddings": False}
                ).encode()
            },
            "model_type: 'lama': expected a decoder whose passes are computed as by",
        ),
        (
            {"config.json": json.dumps(CONFIG | {"model_type": None}).encode()},
            "model_type: None: expected the type of a transformers model in {}/config.json",
        ),
        ({"tokenizer.json": None}, "{} has no tokenizer.json"),
    ],
)
def test_a_model_folder_that_cannot_be_loaded_is_refused_before_ray_starts(
    files: dict[str, bytes | None],
    words: str,
    pair: Pair,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = own_setup(
        tmp_path,
        {"path": str(pair.student)},
        {"path": str(pair.teacher)},
        vocabulary={"size": 64, "valid": 62},  # so that the tokenizer is not read for them
    )
    for name, content in files.items():
        if content is None:
            (pair.teacher / name).unlink()
        else:
            (pair.teacher / name).write_bytes(content)
    for command in ("plan", "submit"):
        code, out, err = trb_here(capsys, command, path, "--runs", tmp_path / "runs")
        assert (code, out) == (2, "")
        line = err.splitlines()[-1]
        assert line.startswith(f"trb: tiny.teacher: {words.format(pair.teacher)}")

    def models(pair: Pair) -> Found:
        return checks.models(CheckedSetup("tiny", pair.setup, tmp_path, 1))

    finding = made(Check("tiny models", models), pair)
    assert (finding.verdict, f"trb: {finding.detail}") == ("fail", line)


def test_a_model_in_parts_is_whole_and_a_student_needs_no_tokenizer(
    pair: Pair, tmp_path: Path
) -> None:
    (pair.student / "tokenizer.json").unlink()
    (pair.teacher / "model.safetensors").rename(pair.teacher / "model-1-of-1.safetensors")
    (pair.teacher / "model.safetensors.index.json").write_text(json.dumps(INDEX))
    check_models("tiny", pair.setup, tmp_path / "runs")


@pytest.mark.parametrize("command", ["plan", "submit"])
def test_too_few_training_rows_are_counted_before_anything_starts(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"question": f"{i}+1", "answer": str(i + 1)} for i in range(39)]
    write_rows(tmp_path / "train.jsonl", [*rows, rows[0]])
    path = with_training_file(tmp_path, {"file": "train.jsonl"})
    arguments = [command, path, "--runs", tmp_path / "runs"]
    code, _, err = trb_here(capsys, *arguments)
    assert code == 2
    assert "data: 39 different problems: expected 40 for 10 steps of 4" in err.splitlines()[-1]
    if command == "plan":
        # The supervised stage, which nothing here runs, asks for none.
        trb_shows(capsys, *arguments, "training.steps=9", "training.sft.updates=50")
