"""The pair that checks and calibrations of a GPU work on. Loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.checks.experiment import CheckedSetup, checked_setup
from orchestrator.config import Placement, Runtime, Setup
from orchestrator.engines import memory
from orchestrator.engines.interface import OWNERS, Job, ModelFolder, Owner
from orchestrator.engines.memory import Gpus
from orchestrator.experiment.methods import needs_teacher
from orchestrator.models.locate import lies_here
from orchestrator.pair import Model, Shape, Vocabulary
from orchestrator.rules import Dtype
from orchestrator.selection.study import Study
from orchestrator.workers.spec import ranks

# Of a teacher with random weights, which is written quickly: the checks depend on vocabulary and
# widths, not on depth.
MADE_TEACHER_LAYERS = 4
SMALL = Shape(layers=2, hidden=64, heads=4, kv_heads=2, head_dim=64, ffn=128)
SMALL_VOCABULARY = 512


@dataclass(frozen=True)
class Bench:
    """Plain data for the processes of the checks.

    - `of` is the experiment's setup, and `setup` its version for the checks: a teacher that is
      `made` here has fewer layers.
    - `folders` holds the folders of student and teacher. The models of the experiment itself lie
      in its `runs` folder, unless they were `made` for the bench.
    - In `folder` the checks leave files for each other.
    - A `small` bench has tiny models and needs no GPU.
    - `blends` says whether any trial asks the teacher while it decodes.
    """

    of: CheckedSetup
    setup: Setup
    runtime: Runtime
    folders: Mapping[Owner, Path]
    made: tuple[Owner, ...]
    folder: Path
    blends: bool
    small: bool = False

    @property
    def declared(self) -> Setup:
        """The setup with the whole teacher."""
        return self.of.setup

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


def bench_of(study: Study, name: str, folder: Path) -> Bench:
    """The bench of a setup; models that are not here are made in `folder`."""
    of = checked_setup(study, name)
    folders: dict[Owner, Path] = {}
    missing: list[Owner] = []
    for owner in OWNERS:
        there = lies_here(of.model(owner), of.setup, study.runs)
        folders[owner] = there or folder / "models" / owner
        if there is None:
            missing.append(owner)
    # Blending comes first in a trial, if at all, so that its first step tells.
    blends = any(needs_teacher(unit.method, unit.knobs, 0) for unit in study.units_of(name))
    runtime = study.experiment.runtime
    return Bench(of, of.setup, runtime, folders, tuple(missing), folder, blends)


def largest_pair(study: Study, folder: Path) -> Bench:
    """The bench of an experiment's largest pair, with a short teacher if that has to be made."""
    sizes: dict[str, int] = {}
    for name, setup in study.experiment.setups.items():
        sizes[name] = 0
        for shape in (setup.student.shape, setup.teacher.shape):
            sizes[name] += memory.parameters(shape, setup.vocabulary.size)
    bench = bench_of(study, max(sizes, key=lambda name: sizes[name]), folder)
    teacher = bench.setup.teacher
    layers = teacher.shape.layers
    if "teacher" in bench.made:
        layers = min(layers, MADE_TEACHER_LAYERS)
    shape = replace(teacher.shape, layers=layers)
    return replace(bench, setup=replace(bench.setup, teacher=replace(teacher, shape=shape)))


def small_version(bench: Bench, gpu: bool) -> Bench:
    """The bench's engines and objective on a pair that a CPU decodes in seconds."""
    runtime = Runtime(
        placement=Placement(gpus=int(gpu)),
        rollout_batch=4,
        micro_batch_tokens=256,
        engine_start_s=bench.runtime.engine_start_s,
    )
    setup = _small(bench.declared, bench.setup.engine.dtype if gpu else "float32")
    return replace(
        bench,
        of=replace(bench.of, setup=setup),
        setup=setup,
        runtime=runtime,
        folders={owner: bench.folder / "models" / owner for owner in OWNERS},
        made=OWNERS,
        small=True,
    )


def _small(setup: Setup, dtype: Dtype) -> Setup:
    top_k = min(setup.training.top_k, SMALL_VOCABULARY // 2)
    training = replace(setup.training, max_prompt_tokens=16, max_response_tokens=48, top_k=top_k)
    wide = replace(SMALL, layers=4, hidden=128, tied=False)
    return replace(
        setup,
        student=Model(eos=SMALL_VOCABULARY - 2, shape=SMALL),
        teacher=Model(eos=SMALL_VOCABULARY - 1, shape=wide),
        vocabulary=Vocabulary(SMALL_VOCABULARY, SMALL_VOCABULARY),
        engine=replace(setup.engine, dtype=dtype),
        training=training,
        evaluation=replace(setup.evaluation, max_response_tokens=48),
    )
