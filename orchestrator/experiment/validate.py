"""Checks rules on which several keys must agree; `config` holds the rule of each single key."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, replace

from orchestrator.config import Experiment, Placement, Setup
from orchestrator.data.benchmarks import check_source
from orchestrator.engines import catalog
from orchestrator.engines.memory import Gpus
from orchestrator.errors import UserError, one_of, refuse
from orchestrator.experiment.axes import axes_of, own_knobs, setup_at
from orchestrator.experiment.evaluation_protocol import held_out_prompts
from orchestrator.experiment.identity import training_keys
from orchestrator.experiment.methods import METHODS, Grid, check_grid
from orchestrator.experiment.reading import build
from orchestrator.experiment.search import PointList, grid_of
from orchestrator.models.identity import digest
from orchestrator.pair import Model, Recipe, Shape, Vocabulary
from orchestrator.rules import Name, TokenizerName, entries, entry

OF_RUNGS = ("training.steps", "training.checkpoint_every")
MOST_TRIALS = 10_000  # of one method
# Keys of recipes that only the examples of the embedded world read.
EMBEDDED_ALONE = (
    *("wrong_step", "off_task", "no_reasoning"),
    *("longest", "words", "recovers", "derails"),
)


def check_experiment(experiment: Experiment) -> None:
    """Raise UserError on the first value in `experiment` that cannot be run as written."""
    if not experiment.methods:
        raise refuse("methods", {}, f"at least one of {', '.join(METHODS)}")
    for method, grid in experiment.methods.items():
        settings = experiment.points.get(method)
        count = math.prod(map(len, grid.values())) if settings is None else len(settings)
        trials = count * len(experiment.seeds_of(method))
        if trials > MOST_TRIALS:
            raise UserError(
                f"methods.{method}: {trials} trials: expected at most {MOST_TRIALS} of one method"
            )
    _check_confirmation(experiment)
    _check_search(experiment)
    _check_placement("runtime.placement", experiment.runtime.placement)
    for method, placement in experiment.placements.items():
        _check_placement(f"methods.{method}.placement", placement)
        if placement.gpu_share != experiment.runtime.placement.gpu_share:
            share = f"{experiment.runtime.placement.gpus:g}, as runtime.placement.gpus: one share for all trials"
            raise refuse(f"methods.{method}.placement.gpus", placement.gpus, share)
    for name, setup in experiment.setups.items():
        check_setup(name, setup)
        _check_draft_length(name, setup, experiment.runtime.draft_length)
        _check_resident(name, setup, experiment.runtime.resident)
        supervised = any(
            METHODS[method].updates_before is not None for method in experiment.methods
        )
        _check_spread("runtime.placement", experiment.runtime.placement, name, setup, supervised)
        for method, placement in experiment.placements.items():
            _check_spread(f"methods.{method}.placement", placement, name, setup, supervised=False)
        for method, grid in experiment.methods.items():
            _check_axes(method, grid, name, setup)
            for changed, own in _grids_by_setup(experiment.settings_of(method), setup):
                if changed != setup:
                    check_setup(name, changed)
                check_grid(method, own, name, changed)


def _grids_by_setup(settings: PointList, setup: Setup) -> list[tuple[Setup, Grid]]:
    """The setups at the axes of all settings, each with the knobs that it meets."""
    by_point: dict[str, PointList] = {}
    for setting in settings:
        by_point.setdefault(repr(axes_of(setting)), []).append(setting)
    return [
        (setup_at(setup, group[0]), grid_of([own_knobs(each) for each in group]))
        for group in by_point.values()
    ]


def _check_axes(method: str, grid: Grid, name: str, setup: Setup) -> None:
    """Check that each axis of a method changes its training."""
    axes = axes_of(grid)
    supervised = METHODS[method].updates_before is not None
    for axis, values in axes.items():
        setups = [setup_at(setup, {axis: value}) for value in values]
        if len({digest(training_keys(each, supervised)) for each in setups}) < len(values):
            right = f"a key that changes what {method} learns"
            raise refuse(f"axes.{axis}", values, right)


def _check_search(experiment: Experiment) -> None:
    """Raise UserError where a halving search cannot compare its settings at rungs."""
    if experiment.search.kind != "halving":
        return
    for grid in experiment.methods.values():
        for axis in axes_of(grid):
            if axis in OF_RUNGS:
                raise UserError(
                    f"axes.{axis}: moves the rungs of search.kind halving: expected kind random"
                )
    for name, setup in experiment.setups.items():
        if experiment.search.by == "held_out_kl" and not held_out_prompts(setup):
            raise refuse(f"{name}.evaluation.held_out", 0, "1 or more, with search.by held_out_kl")


def _check_confirmation(experiment: Experiment) -> None:
    """Raise UserError if a seed confirms a choice that it took part in, or a method is missing."""
    seeds, methods = experiment.confirm.seeds, experiment.confirm.methods
    both = [seed for seed in seeds if seed in experiment.explored_seeds]
    if both:
        explored = ", ".join(map(str, experiment.explored_seeds))
        raise refuse(
            "confirm.seeds", both[0], f"a seed other than {explored}, which choose the settings"
        )
    for method in methods or []:
        one_of("confirm.methods", method, list(experiment.methods))
    if methods == []:
        raise refuse(
            "confirm.methods", methods, f"null for all, or some of {', '.join(experiment.methods)}"
        )


def check_setup(name: str, setup: Setup) -> None:
    """Raise UserError on the first value of the setup `name` that breaks a rule."""
    for role, model in (("student", setup.student), ("teacher", setup.teacher)):
        _check_origin(f"{name}.{role}", model)
        if model.recipe is not None:
            if model.recipe.is_embedded:
                one_of(f"{name}.tokenizer", setup.tokenizer, entry(TokenizerName).choices)
            _check_recipe(f"{name}.{role}", role, model.recipe, setup)
        _check_given(f"{name}.{role}.shape", model.shape)
    _check_vocabulary(name, setup)
    if not setup.evaluation.benchmarks:
        raise refuse("evaluation.benchmarks", {}, "at least one benchmark")
    _check_engine(setup)
    sft = setup.training.sft
    if not sft.checkpoints or any(not 1 <= k <= sft.updates for k in sft.checkpoints):
        raise refuse(
            "training.sft.checkpoints", sft.checkpoints, f"updates between 1 and {sft.updates}"
        )
    for key, run in setup.evaluation.benchmarks.items():
        check_source(key, run)
        build(Name, key, "evaluation.benchmarks")
    if setup.training.top_k > setup.vocabulary.valid:
        raise refuse(
            "training.top_k",
            setup.training.top_k,
            f"≤ the vocabulary of {setup.vocabulary.valid} ids",
        )


def _check_engine(setup: Setup) -> None:
    """Check engines for each role; the trainer's engine scores, too, see `workers.members`."""
    one_of("engine.sampler", setup.engine.sampler, catalog.able("sampler"))
    one_of("engine.trainer", setup.engine.trainer, catalog.able("trainer", "scorer"))
    if setup.engine.head_dtype not in ("float32", setup.engine.dtype):
        raise refuse("engine.head_dtype", setup.engine.head_dtype, "float32, as in engine.dtype")


def _check_draft_length(name: str, setup: Setup, drafted: int | None) -> None:
    """Check that the engine that blends can draft `drafted` tokens in a round."""
    sampler = catalog.sampler_of(setup.engine.sampler, teacher_decodes=True)
    most = catalog.ENGINES[sampler].longest_draft
    if drafted is not None and most is not None and drafted > most:
        raise refuse(
            "runtime.draft_length", drafted, f"≤ {most} where {sampler} samples, as in {name}"
        )


def _check_resident(name: str, setup: Setup, resident: bool | None) -> None:
    """Check that a learner that has to stay on a shared GPU was counted with these engines."""
    sampler, trainer = setup.engine.sampler, setup.engine.trainer
    if resident and not catalog.stays(sampler, trainer):
        raise refuse(
            "runtime.resident",
            True,
            f"null or false where {sampler} samples and {trainer} trains, as in {name}",
        )


def _check_placement(key: str, placement: Placement) -> None:
    """Check the GPUs of a mode: Ray lets actors share one GPU, but never several."""
    own = placement.role_gpus
    if own is not None and placement.mode != "split":
        raise UserError(
            f"{key}.role_gpus: {asdict(own)}: expected none in mode {placement.mode}, only in mode split"
        )
    if own is not None and placement.gpus != own.total:
        raise refuse(
            f"{key}.gpus", placement.gpus, f"{own.total}, the sum of role_gpus, or nothing at all"
        )
    if own is None and placement.mode == "split" and placement.gpus:
        right = "inline or colocated, where roles share GPUs; or role_gpus, which gives each role its own"
        raise refuse(f"{key}.mode", "split", right)
    if placement.mode == "colocated" and placement.gpus > 1:
        right = f"inline, or split with role_gpus: actors can share one GPU, and this trial has {placement.gpus:g}"
        raise refuse(f"{key}.mode", "colocated", right)


def _check_spread(
    key: str, placement: Placement, name: str, setup: Setup, supervised: bool
) -> None:
    """Check that the engines of a setup can use as many GPUs as a placement gives to their roles.

    In the supervised stage the teacher answers prompts on the sampler's engine; it always scores on
    the trainer's.
    """
    counts = {role: Gpus.of(placement, role).count for role in ("rollout", "teacher", "learner")}
    sampling = ("rollout", "teacher") if supervised else ("rollout",)
    engine, trainers = setup.engine, catalog.spreading("scorer", "trainer")
    _check_devices(
        "engine.sampler",
        engine.sampler,
        catalog.spreading("sampler"),
        max(counts[r] for r in sampling),
    )
    _check_devices(
        "engine.trainer", engine.trainer, trainers, max(counts["teacher"], counts["learner"])
    )
    for role in sampling:
        for owner in ("student", "teacher"):
            shape = getattr(setup, owner).shape
            if not shape.divides_by(counts[role]):
                count = "gpus" if placement.role_gpus is None else f"role_gpus.{role}"
                sizes = f"{shape.heads} heads, {shape.kv_heads} KV heads and {shape.ffn} feed-forward columns"
                raise refuse(
                    f"{key}.{count}", counts[role], f"a divisor of the {sizes} of {name}'s {owner}"
                )


def _check_devices(key: str, engine: str, able: list[str], count: int) -> None:
    if count > 1 and engine not in able:
        right = f"{' or '.join(able)}: {engine} uses one device, and a trial's placement gives it {count} GPUs"
        raise refuse(key, engine, right)


def _check_origin(key: str, model: Model) -> None:
    """Check that a model is either loaded, in a known version, or made."""
    if (model.path is None) == (model.recipe is None):
        raise UserError(f"{key}: expected exactly one of path (with revision) and recipe")
    if model.path is None or re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", model.revision or ""):
        return
    raise refuse(
        f"{key}.revision", model.revision, "a commit (40 hex digits) or a sha256 of the files (64)"
    )


def _check_recipe(key: str, role: str, recipe: Recipe, setup: Setup) -> None:
    """Check that the keys of a recipe are those of one kind, and that layers can be left out."""
    if recipe.dtype != "float32" and (recipe.updates or not recipe.is_embedded):
        raise refuse(
            f"{key}.recipe.dtype",
            recipe.dtype,
            "float32 where updates are made, and for weights that are not random",
        )
    if (recipe.package is None) != (recipe.file is None) or (recipe.weights and not recipe.package):
        raise UserError(f"{key}.recipe: expected package and file together, and weights with them")
    if recipe.is_embedded:
        return
    for name in EMBEDDED_ALONE:
        if getattr(recipe, name) != getattr(Recipe(), name):
            raise UserError(f"{key}.recipe.{name}: expected none: the weights are not random")
    if recipe.package is not None:
        if recipe.without_layers:
            raise UserError(f"{key}.recipe.without_layers: expected none beside a package")
        if recipe.updates and setup.data.source != "word_problems":
            raise refuse(
                f"{key}.recipe.updates",
                recipe.updates,
                "0, or data.source: word_problems, which have worked solutions",
            )
        return
    if role != "student":
        raise UserError(f"{key}.recipe.without_layers: expected in the student's recipe alone")
    _check_cut(key, recipe.without_layers, setup)


def _check_cut(key: str, left_out: list[int], setup: Setup) -> None:
    """Check that a student cut out of its teacher has the teacher's sizes but for the layers."""
    layers = setup.teacher.shape.layers
    if len(set(left_out)) != len(left_out) or max(left_out) >= layers or len(left_out) >= layers:
        raise refuse(
            f"{key}.recipe.without_layers", left_out, f"some of the layers 0 to {layers - 1}, once"
        )
    sizes = replace(setup.teacher.shape, layers=layers - len(left_out))
    for name, size in asdict(sizes).items():
        given = getattr(setup.student.shape, name)
        if given != size and name != "parameters":  # which need not be given
            raise refuse(f"{key}.shape.{name}", given, f"{size}, as the teacher's layers leave it")


def _check_given(key: str, sizes: Shape | Vocabulary) -> None:
    """Check that each size has a value, from the setup or from a model in a local folder."""
    for name, declared in entries(type(sizes)).items():
        if declared.rule and not getattr(sizes, name):
            right = f"{declared.describe()}; only a model in a local folder can leave it out"
            raise UserError(f"{key}.{name}: no value: expected {right}", f"{key}.{name}")


def _check_vocabulary(name: str, setup: Setup) -> None:
    vocabulary = setup.vocabulary
    _check_given(f"{name}.vocabulary", vocabulary)
    if not 1 <= vocabulary.valid <= vocabulary.size:
        raise refuse(
            f"{name}.vocabulary.valid", vocabulary.valid, f"between 1 and size {vocabulary.size}"
        )
    for role in ("student", "teacher"):
        model: Model = getattr(setup, role)
        for number in model.stop_ids:
            if not 0 <= number < vocabulary.valid:
                expected = f"an id between 0 and {vocabulary.valid - 1}"
                raise refuse(f"{name}.{role}.eos", number, expected)
