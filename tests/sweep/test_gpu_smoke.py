"""The shipped experiments for a first hour on a GPU, on tiny models without one: all that they
exercise happens.
"""

from __future__ import annotations

import json
import shutil

import pytest
import yaml
from safetensors.torch import load_file

from orchestrator.records.rundir import RunReader
from tests.sweeps import ROOT, TINY_SHAPE, Sweep, trb
from tests.test_first_hour import blocks, matches

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray")]
RANDOM = "gpu-smoke-random"
SHORTER = [
    "engine.sampler=torch",
    "training.prompts_per_step=2",
    "training.max_response_tokens=12",
    "evaluation.max_response_tokens=12",
    "evaluation.benchmarks.arithmetic_short.limit=3",
    "evaluation.benchmarks.arithmetic_long.limit=3",
    "runtime.placement.gpus=0",
    "runtime.placement.cpus=1",
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """The shipped experiment with random weights, but for smaller shapes, fewer and shorter
    responses.
    """
    folder = tmp_path_factory.mktemp("smoke")
    shutil.copy(ROOT / "experiments" / f"{RANDOM}.yaml", folder)
    setup = yaml.safe_load((ROOT / "experiments" / "setups" / f"{RANDOM}.yaml").read_text())
    setup["vocabulary"] = {
        "size": 300,
        "valid": 290,
    }  # tokens beyond the bytes and rows beyond the tokens, as shipped
    for role in ("student", "teacher"):
        setup[role]["shape"] = TINY_SHAPE
    (folder / "setups").mkdir()
    (folder / "setups" / f"{RANDOM}.yaml").write_text(yaml.safe_dump(setup))
    experiment, runs = folder / f"{RANDOM}.yaml", folder / "runs"
    done = trb("submit", experiment, *SHORTER, "--runs", runs)
    assert done.returncode == 0, done.stdout + done.stderr
    return Sweep(experiment, runs, done.stdout)


def unit(sweep: Sweep, method: str) -> RunReader:
    """The run directory of a method's only trial."""
    [folder] = sweep.runs.glob(f"{RANDOM}-{method}-*")
    return RunReader(sweep.runs, folder.name)


def test_it_prints_what_the_page_of_the_first_hour_shows(finished: Sweep) -> None:
    lines = blocks()[f"trb submit experiments/{RANDOM}.yaml"]
    assert [line for line in lines if not matches(line, finished.shown)] == [], finished.shown


def test_models_of_random_weights_are_written_in_bfloat16(finished: Sweep) -> None:
    models = sorted(finished.runs.glob("models/*/model.safetensors"))
    assert len(models) == 2, "student and teacher"
    for file in models:
        tensors = load_file(file)
        assert {tensor.dtype.itemsize for tensor in tensors.values()} == {2}
        assert tensors["model.embed_tokens.weight"].shape == (300, 16)


def test_trb_blends_for_three_steps_and_goes_on_plain_while_skd_blends_to_its_end(
    finished: Sweep,
) -> None:
    blended = {}
    for method, column in {
        "vanilla": "draft_length",
        "trust_region": "beta",
        "skd": "replaced",
    }.items():
        blended[method] = [row["step"] for row in unit(finished, method).metrics() if column in row]
    assert blended == {"vanilla": [], "trust_region": [0, 1, 2], "skd": [*range(8)]}


def test_the_checkpoint_in_the_middle_races_with_the_last_one(finished: Sweep) -> None:
    """Each gets its samples rung by rung, and the selected one all four at once on fresh samples."""
    for method in ("vanilla", "trust_region", "skd"):
        slices: dict[tuple[str, str], set[str]] = {}
        for file in finished.runs.glob(
            f"{RANDOM}-{method}-*/evals/arithmetic_short-*/step_*/problems_*.jsonl"
        ):
            of_step = slices.setdefault((file.parents[1].name, file.parent.name), set())
            of_step.add(file.stem.rpartition(".samples_")[2])
        assert {step for _, step in slices} == {"step_000004", "step_000008"}
        fresh = [key for key, samples in slices.items() if samples == {"0-4"}]
        rungs = [key for key, samples in slices.items() if samples == {"0-1", "1-2", "2-3", "3-4"}]
        assert (len(fresh), len(rungs)) == (1, 2), slices


def test_it_ends_in_a_table_with_every_row_filled(finished: Sweep) -> None:
    shown = trb("table", finished.experiment, *SHORTER, "--runs", finished.runs, "--format", "json")
    assert shown.returncode == 0, shown.stderr
    table = json.loads(shown.stdout)
    assert {row["method"] for row in table["rows"]} == {"vanilla", "trust_region", "skd", "base"}
    for row in table["rows"]:
        values = [cell["value"] for cell in row["cells"]]
        assert values == [0.0, 0.0, 0.0], "random weights box no answer"
    for record in table["evidence"]["selected"]:
        assert record["candidates"] == (1 if record["method"] == "base" else 2)
        assert record["fresh"] == 0.0
