"""The bench of the checks: a setup, and models of its shapes, which the checks find or make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.config import (
    Dtype,
    Experiment,
    Model,
    Placement,
    Runtime,
    Setup,
    Shape,
    Vocabulary,
)
from orchestrator.engines import memory
from orchestrator.engines.interface import Job, ModelFolder, Owner
from orchestrator.engines.memory import Gpus
from orchestrator.experiment.methods import needs_teacher
from orchestrator.models.locate import lies_here
from orchestrator.selection.study import Study
from orchestrator.workers.spec import ranks

# Of a teacher with random weights, which is written quickly: the checks depend on vocabulary and
# widths, not on depth.
MADE_TEACHER_LAYERS = 4
ROUNDING_GIB = 0.1  # an excess over the granted memory up to this is no finding
SMALL = Shape(layers=2, hidden=64, heads=4, kv_heads=2, head_dim=64, ffn=128)
SMALL_VOCABULARY = 512


@dataclass(frozen=True)
class Bench:
    """Plain data for the processes of the checks.

    - `declared` is the experiment's setup, and `setup` its version for the checks: a teacher that
      is `made` here has fewer layers.
    - `folders` holds the folders of student and teacher. The models of `experiment` itself lie in
      its `runs` folder, unless they were `made` for the bench.
    - In `folder` the checks leave files for each other.
    - A `small` bench has tiny models and needs no GPU.
    - `blends` says whether any trial asks the teacher while it decodes.
    """

    name: str
    declared: Setup
    setup: Setup
    runtime: Runtime
    folders: Mapping[Owner, Path]
    made: tuple[Owner, ...]
    folder: Path
    blends: bool
    small: bool
    experiment: Experiment
    runs: Path

    def job(self) -> Job:
        """Training of the pair as in a trial, by roles that take turns on their device."""
        placement = self.runtime.placement
        return Job(
            self.setup,
            self.runtime,
            ModelFolder(str(self.folders["student"])),
            ModelFolder(str(self.folders["teacher"])),
            steps=100,
            ranks=ranks(placement, "learner"),
            on=Gpus.of(placement, "rollout"),
            takes_turns=True,
        )

    def model(self, owner: Owner) -> Model:
        return self.setup.student if owner == "student" else self.setup.teacher


def bench_of(study: Study, folder: Path, gpu: bool, small: bool) -> Bench:
    """The bench of an experiment's largest pair, on a GPU or on CPUs; checks write into `folder`."""
    name, setup = max(study.experiment.setups.items(), key=lambda item: _size(item[1]))
    # Blending comes first in a trial, if at all, so that its first step tells.
    blends = any(needs_teacher(unit.method, unit.knobs, 0) for unit in study.units_of(name))
    runtime = study.experiment.runtime
    if small:
        runtime = Runtime(
            placement=Placement(gpus=int(gpu)),
            rollout_batch=4,
            micro_batch_tokens=256,
            engine_start_s=runtime.engine_start_s,
        )
        setup = _small(setup, setup.engine.dtype if gpu else "float32")
    declared = setup
    folders: dict[Owner, Path] = {}
    made: list[Owner] = []
    owners: tuple[Owner, ...] = ("student", "teacher")
    for owner in owners:
        model = setup.student if owner == "student" else setup.teacher
        found = None if small else lies_here(model, setup, study.runs)
        folders[owner] = found or folder / "models" / owner
        if found is None:
            made.append(owner)
    if "teacher" in made and not small:
        layers = min(setup.teacher.shape.layers, MADE_TEACHER_LAYERS)
        shape = replace(setup.teacher.shape, layers=layers)
        setup = replace(setup, teacher=replace(setup.teacher, shape=shape))
    return Bench(
        name=name,
        declared=declared,
        setup=setup,
        runtime=runtime,
        folders=folders,
        made=tuple(made),
        folder=folder,
        blends=blends,
        small=small,
        experiment=study.experiment,
        runs=study.runs,
    )


def _size(setup: Setup) -> int:
    """Parameters of a pair."""
    size = setup.vocabulary.size
    student = memory.parameters(setup.student.shape, size)
    return student + memory.parameters(setup.teacher.shape, size)


def _small(setup: Setup, dtype: Dtype) -> Setup:
    """The setup's engines and objective, on a pair that a CPU decodes in seconds."""
    top_k = min(setup.training.top_k, SMALL_VOCABULARY // 2)
    training = replace(setup.training, max_prompt_tokens=16, max_response_tokens=48, top_k=top_k)
    return replace(
        setup,
        student=Model(eos=SMALL_VOCABULARY - 2, shape=SMALL),
        teacher=Model(
            eos=SMALL_VOCABULARY - 1, shape=replace(SMALL, layers=4, hidden=128, tied=False)
        ),
        vocabulary=Vocabulary(SMALL_VOCABULARY, SMALL_VOCABULARY),
        engine=replace(setup.engine, dtype=dtype),
        training=training,
        evaluation=replace(setup.evaluation, max_response_tokens=48),
    )
