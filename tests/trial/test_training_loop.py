"""A whole trial in this process, on data in which some problems have no known answer."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from safetensors.torch import load_file
from torch import Tensor

from orchestrator.config import RoleGpus
from orchestrator.data.prompts import token_texts
from orchestrator.engines.interface import ModelFolder, WeightsRef
from orchestrator.errors import NotFinite, WrongWeights
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.units import Unit, expand, setup_of
from orchestrator.grading.grader import Grade
from orchestrator.liveness import heartbeat
from orchestrator.models.identity import model_identity
from orchestrator.models.recipes import build_embedded, make_tokenizer
from orchestrator.policy.laws import TOLERANCE, Pass, next_beta
from orchestrator.policy.randomness import Purpose
from orchestrator.policy.spec import BatchBudget
from orchestrator.records.rundir import CANARY, LEARNER_STATE, RunReader
from orchestrator.records.writer import RunWriter
from orchestrator.trial import training_loop
from orchestrator.trial import training_loop as step_module
from orchestrator.trial.training_loop import TrainingStep, run_unit
from orchestrator.workers.members import LearnerWorker, RolloutWorker, TeacherWorker
from orchestrator.workers.roles import Here, Inline
from orchestrator.workers.spec import RoleName, WorkerSpec
from tests.sweeps import TINY_SETUP, write_experiment

# Some problems with a gold, some without; 8 prompts are what two steps take.
ROWS = [
    {"id": f"{i}", "problem": f"{i}+1=?"} | ({"answer": f"{i + 1}"} if i % 2 else {})
    for i in range(1, 9)
]

VANILLA: Mapping[str, Any] = {"vanilla": {}}
BLENDS: Mapping[str, Any] = {"trust_region": {"epsilon0": [0.05], "K": [1]}}


def worker_spec(
    folder: Path,
    rows: list[dict[str, str]],
    optimizer: dict[str, float] | None = None,
    methods: Mapping[str, Any] = VANILLA,
) -> WorkerSpec:
    """A trial of the tiny setup on `rows`, with models that learned next to nothing."""
    data = folder / "train.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = [{"file": data.name, "sha256": hashlib.sha256(data.read_bytes()).hexdigest()}]
    training = (
        TINY_SETUP["training"]
        | {"steps": 2, "sft": {"updates": 1, "checkpoints": [1]}}
        | ({"optimizer": optimizer} if optimizer is not None else {})
    )
    path = write_experiment(folder, dict(methods))
    changed = TINY_SETUP | {"data": {"source": "jsonl", "files": files}, "training": training}
    (folder / "setups" / "tiny.yaml").write_text(yaml.safe_dump(changed))
    experiment = load_experiment(path)
    setup = experiment.setups["tiny"]
    models = {role: ModelFolder(str(folder / role)) for role in ("student", "teacher")}
    for role, model in (("student", setup.student), ("teacher", setup.teacher)):
        build_embedded(model_identity(model, setup), folder / role)
    unit = next(unit for unit in expand(experiment) if unit.kind == "trial")
    start, teacher = models["student"], models["teacher"]
    setup = setup_of(unit, experiment)
    return WorkerSpec(unit, setup, experiment.runtime, start, teacher, start, str(folder))


def test_a_diverged_run_names_its_step(tmp_path: Path) -> None:
    """With this rate the first update leaves weights from which nothing can be sampled."""
    spec = worker_spec(tmp_path, ROWS, {"lr": 1e30, "warmup_steps": 0})
    roles = Inline(spec)
    with closing(RunWriter(tmp_path / "runs", spec.unit.id)) as run:
        try:
            with pytest.raises(
                NotFinite, match=r"^step 1: .* not finite \(training.optimizer.lr=1e\+30\?\)$"
            ):
                list(run_unit(spec, run, roles))
        finally:
            roles.close()
    assert [row["step"] for row in run.metrics()] == [0]


def test_an_order_of_a_seed_is_shared_by_its_methods(tmp_path: Path) -> None:
    """Methods of one seed meet the same problems, and another seed meets others."""
    spec = worker_spec(tmp_path, ROWS, methods={"vanilla": {}, "prefix_horizon": {"tokens": [3]}})
    training = replace(spec.setup.training, order_per_seed=True)
    read: dict[tuple[str, int], list[str]] = {}
    for method, knobs in (("vanilla", {}), ("prefix_horizon", {"tokens": 3})):
        for seed in (0, 1):
            unit = replace(spec.unit, id=f"{method}-{seed}", method=method, knobs=knobs, seed=seed)
            own = replace(spec, unit=unit, setup=replace(spec.setup, training=training))
            roles = Inline(own)
            with closing(RunWriter(tmp_path / "runs", unit.id)) as run:
                try:
                    list(run_unit(own, run, roles))
                finally:
                    roles.close()
            read[method, seed] = [each.prompt for each in run.rollout_samples(0)]
    assert read["vanilla", 0] == read["prefix_horizon", 0] != read["vanilla", 1]
    assert read["vanilla", 1] == read["prefix_horizon", 1]


class Overflowing(Inline):
    """Roles whose learner reports a loss that is not finite."""

    def call(self, role: RoleName, method: Callable[..., Any], *arguments: Any) -> Here[Any]:
        answer = super().call(role, method, *arguments)
        return (
            Here(answer.value | {"loss": float("inf")}) if method is LearnerWorker.step else answer
        )


def test_a_loss_that_is_not_finite_is_never_logged(tmp_path: Path) -> None:
    """Weights that overflow only in training's passes: a learner's numbers are looked at before
    they are logged.
    """
    spec = worker_spec(tmp_path, ROWS, {})
    roles = Overflowing(spec)
    with closing(RunWriter(tmp_path / "runs", spec.unit.id)) as run:
        try:
            with pytest.raises(NotFinite, match=r"^step 0: loss is not finite"):
                list(run_unit(spec, run, roles))
        finally:
            roles.close()
    assert run.metrics() == []


class Mistaken(Inline):
    """Roles whose sampler gets other weights than the learner's from the second step on."""

    def __init__(self, spec: WorkerSpec, mistake: str):
        super().__init__(spec)
        self._mistake = mistake
        self._first: dict[str, Tensor] | None = None

    def call(self, role: RoleName, method: Callable[..., Any], *arguments: Any) -> Here[Any]:
        if method is RolloutWorker.load:
            ref = arguments[0].value
            given = dict(ref.place)
            if self._first is None:
                self._first = given
            elif self._mistake == "stale":
                given = self._first
            else:  # torn: each second tensor is that of the step before
                for name in list(given)[::2]:
                    given[name] = self._first[name]
            arguments = (Here(WeightsRef(ref.step, given)),)
        return super().call(role, method, *arguments)


def trained(
    folder: Path,
    roles_of: Callable[[WorkerSpec], Inline],
    lr: float,
    methods: Mapping[str, Any] = VANILLA,
) -> RunWriter:
    """A closed run of two steps, whose first update has the full rate."""
    folder.mkdir()
    spec = worker_spec(folder, ROWS, {"lr": lr, "warmup_steps": 0}, methods)
    roles = roles_of(spec)
    with closing(RunWriter(folder / "runs", spec.unit.id)) as run:
        try:
            list(run_unit(spec, run, roles))
        finally:
            roles.close()
    return run


def test_an_axis_trains_as_the_rate_of_a_setup(tmp_path: Path) -> None:
    """The same directory, and the same bytes in it; another rate gives other weights."""
    files = {}
    for name, lr, methods in (
        ("setup's", 5e-3, VANILLA),
        ("axis", 1e-3, {"vanilla": {"axes": {"training.optimizer.lr": 5e-3}}}),
        ("other", 1e-3, VANILLA),
    ):
        run = trained(tmp_path / name, Inline, lr, methods)
        weights = run.checkpoint_path(2) / "model.safetensors"
        metrics = (run.path / "metrics.jsonl").read_bytes()
        files[name] = (run.path.name, weights.read_bytes(), metrics)
        assert {row["lr"] for row in run.metrics()} == {1e-3 if name == "other" else 5e-3}
    assert files["axis"] == files["setup's"]
    assert not set(files["axis"]) & set(files["other"])


@pytest.mark.parametrize("mistake", ["stale", "torn"])
def test_a_sampler_with_other_weights_shows_and_ends_the_unit(tmp_path: Path, mistake: str) -> None:
    """The weights of the step before: a small update is noted, a large one is refused."""
    right = trained(tmp_path / "right", Inline, lr=1e-3)
    assert [row["sampler_gap"] < 1e-5 for row in right.metrics()] == [True, True]
    assert "nats apart" not in (right.path / "log.txt").read_text()
    wrong = trained(tmp_path / "wrong", lambda spec: Mistaken(spec, mistake), lr=1e-3)
    assert wrong.metrics()[0]["sampler_gap"] < 1e-5
    assert wrong.metrics()[1]["sampler_gap"] > 0.003
    assert "step 1: sampler and learner are 0.0" in (wrong.path / "log.txt").read_text()
    with pytest.raises(WrongWeights, match=r"^step 1: sampler and learner are .* expected at most"):
        trained(tmp_path / "far", lambda spec: Mistaken(spec, mistake), lr=0.3)


def run_trial(
    folder: Path, rows: list[dict[str, str]], methods: Mapping[str, Any] = VANILLA
) -> tuple[RunReader, WorkerSpec]:
    spec = worker_spec(folder, rows, methods=methods)
    roles = Inline(spec)
    with closing(RunWriter(folder / "runs", spec.unit.id)) as run:
        try:
            assert list(run_unit(spec, run, roles)) == [2]
        finally:
            roles.close()
    return RunReader(folder / "runs", spec.unit.id), spec


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunReader, WorkerSpec]:
    return run_trial(tmp_path_factory.mktemp("trial"), ROWS)


def test_prompts_without_a_gold_have_no_reward(trial: tuple[RunReader, WorkerSpec]) -> None:
    run, _ = trial
    rewards = [row["reward"] for row in run.rollouts()]
    assert rewards.count(None) == 8
    assert set(rewards) - {None} <= {0.0, 1.0}
    for metrics in run.metrics():
        present = [
            row["reward"]
            for row in run.rollouts()
            if row["step"] == metrics["step"] and row["reward"] is not None
        ]
        assert metrics["reward"] == (sum(present) / len(present) if present else None)


def test_a_step_without_any_gold_has_no_reward(tmp_path: Path) -> None:
    run, _ = run_trial(tmp_path, [{"id": row["id"], "problem": row["problem"]} for row in ROWS])
    assert {row["reward"] for row in run.rollouts()} == {None}
    assert [(row["reward"], row["support_auroc"]) for row in run.metrics()] == [(None, None)] * 2
    assert all(row["loss"] is not None for row in run.metrics())


def test_the_run_says_what_its_data_were(trial: tuple[RunReader, WorkerSpec]) -> None:
    run, _ = trial
    told = json.loads((run.path / "data.json").read_text())
    assert told == {
        "rows": 8,
        "repeats": 0,
        "too_long": 0,
        "prompts": 8,
        "golds": {"given": 4, "none": 4},
        "overlap": {
            "arithmetic_short": {"problems": 1, "of": 8, "used": 1, "example": "6+1=?"},
        },
    }


def test_start_up_is_logged_once_for_each_role_and_ahead_of_its_first_work(tmp_path: Path) -> None:
    run, _ = run_trial(tmp_path, ROWS)
    timing = [(row["phase"], row.get("role")) for row in run.timing()]
    # The teacher's scores are first asked for when the first responses are there.
    assert timing == [
        *(("start", role) for role in ("learner", "rollout", "teacher")),
        *[("train", None)] * 2,
    ]
    assert all(row["seconds"] >= 0 for row in run.timing() if row["phase"] == "start")


class Killed(Exception):
    """The process ends here."""


class EndsInStep(Inline):
    """Roles whose process ends in the learner's update of a step."""

    def __init__(self, spec: WorkerSpec, step: int):
        super().__init__(spec)
        self._step = step

    def call(self, role: RoleName, method: Callable[..., Any], *arguments: Any) -> Here[Any]:
        if method is LearnerWorker.step and arguments[-1] == self._step:
            raise Killed
        return super().call(role, method, *arguments)


BUDGET: Mapping[str, Any] = {"batch_budget": {"epsilon0": [0.004], "K": [2]}}


@pytest.mark.parametrize("methods", [VANILLA, BLENDS, BUDGET], ids=str)
@pytest.mark.parametrize("from_checkpoint", [True, False])
def test_an_interrupted_trial_ends_with_the_bytes_of_an_undisturbed_one(
    methods: Mapping[str, Any], from_checkpoint: bool, tmp_path: Path
) -> None:
    """It goes on from a checkpoint of the first step, or from a state that was saved after it."""
    spec = worker_spec(tmp_path, ROWS, methods=methods)
    training = replace(spec.setup.training, checkpoint_every=1 if from_checkpoint else 2)
    spec = replace(spec, setup=replace(spec.setup, training=training))
    whole = attempt(spec, tmp_path / "whole", Inline(spec))
    if not from_checkpoint:
        spec = replace(spec, runtime=replace(spec.runtime, save_every="0.001s"))
    with pytest.raises(Killed):
        attempt(spec, tmp_path / "parts", EndsInStep(spec, 1))
    assert RunReader(tmp_path / "parts", spec.unit.id).next_step == 1
    parts = attempt(spec, tmp_path / "parts", Inline(spec))
    assert whole.trained
    steps = [1, 2] if from_checkpoint else [2]
    assert whole.committed_checkpoints() == parts.committed_checkpoints() == steps
    names = {"metrics.jsonl", "rollouts.jsonl", "state.json"}
    for path in whole.checkpoint_path(2).iterdir():
        names.add(str(path.relative_to(whole.path)))
    for name in names:
        assert (parts.path / name).read_bytes() == (whole.path / name).read_bytes(), name


def attempt(spec: WorkerSpec, runs: Path, transport: Inline) -> RunReader:
    """Train as far as the transport goes."""
    with closing(RunWriter(runs, spec.unit.id)) as run:
        try:
            list(run_unit(spec, run, transport))
        finally:
            transport.close()
    return RunReader(runs, spec.unit.id)


# --- what a trial measures on prompts that no trial takes ---

MORE_ROWS = [{"id": f"{i}", "problem": f"{i}+2=?", "answer": f"{i + 2}"} for i in range(1, 13)]


def measuring(
    folder: Path, methods: Mapping[str, Any] = VANILLA, held_out: int | None = 4
) -> WorkerSpec:
    """A trial of two steps and two checkpoints, whose data leave four of twelve prompts."""
    folder.mkdir(exist_ok=True)
    spec = worker_spec(folder, MORE_ROWS, methods=methods)
    training = replace(spec.setup.training, checkpoint_every=1)
    evaluation = replace(spec.setup.evaluation, held_out=held_out)
    return replace(spec, setup=replace(spec.setup, training=training, evaluation=evaluation))


def bytes_of(run: RunReader) -> dict[str, bytes]:
    """Logs, documents and weights of a run, without its clocks and the state that names them all."""
    names = ("metrics.jsonl", "rollouts.jsonl", "data.json", "samples/step_000000.jsonl.gz")
    files = {name: (run.path / name).read_bytes() for name in names}
    for step in run.committed_checkpoints():
        for path in sorted(run.checkpoint_path(step).iterdir()):
            files[f"{step}/{path.name}"] = path.read_bytes()
    return files


@pytest.mark.parametrize("methods", [VANILLA, BLENDS], ids=lambda methods: next(iter(methods)))
def test_measuring_on_held_out_prompts_changes_no_byte_of_training(
    methods: Mapping[str, Any], tmp_path: Path
) -> None:
    found = {}
    for count in (0, 4):
        spec = measuring(tmp_path, methods, held_out=count)
        found[count] = attempt(spec, tmp_path / str(count), Inline(spec))
    assert bytes_of(found[4]) == bytes_of(found[0])
    assert found[0].held_out() == []
    assert not (found[0].path / "held_out.jsonl").exists()
    assert "held_out.jsonl" not in (found[0].path / "state.json").read_text()
    rows = found[4].held_out()
    assert [row.step for row in rows] == [0, 1, 2]
    assert {tuple(row.prompts) for row in rows} == {(8, 9, 10, 11)}
    assert not {8, 9, 10, 11} & {row["prompt"] for row in found[4].rollouts()}
    clocked = [row for row in found[4].timing() if row["phase"] == "held_out"]
    assert [(row["step"], row["responses"], row["tokens"]) for row in clocked] == [
        (row.step, 4, sum(row.tokens)) for row in rows
    ]


def test_all_trials_of_a_setup_measure_the_same_responses_of_the_untrained_student(
    tmp_path: Path,
) -> None:
    """Whatever the method and the seed are: prompts and uniforms are shared."""
    rows = []
    for name, methods, seed in (("a", VANILLA, 0), ("b", VANILLA, 5), ("c", BLENDS, 0)):
        spec = measuring(tmp_path / name, methods)
        spec = replace(spec, unit=replace(spec.unit, seed=seed))
        run = attempt(spec, tmp_path / name / "runs", Inline(spec))
        rows.append(run.held_out())
    assert rows[0][0] == rows[1][0] == rows[2][0]
    assert rows[0][1] != rows[1][1]
    kl = rows[0][0].kl
    assert kl is not None
    assert 0 < kl < 5


def test_a_teacher_that_scores_waits_on_a_gpu_until_blending_is_over(tmp_path: Path) -> None:
    """Two teachers find no room beside each other on one GPU; elsewhere all steps are measured."""
    spec = measuring(tmp_path, {"trust_region": {"epsilon0": 0.5, "K": 1}})
    steps = range(spec.unit.steps + 1)
    assert [training_loop.has_room(spec, step) for step in steps] == [True, True, True]
    serving = replace(spec.setup, engine=replace(spec.setup.engine, sampler="sglang"))
    for gpus, apart, measured in (
        (0, False, [True] * 3),
        (1, False, [False, True, True]),
        (3, True, [True] * 3),
    ):
        roles = RoleGpus() if apart else None
        placement = replace(spec.unit.placement, gpus=gpus, role_gpus=roles)
        there = replace(spec, setup=serving, unit=replace(spec.unit, placement=placement))
        assert [training_loop.has_room(there, step) for step in steps] == measured
    always = replace(there.unit, method="skd", knobs={"K": 4, "tau_T": 1.0})
    shared = replace(always, placement=replace(always.placement, gpus=1, role_gpus=None))
    assert [training_loop.has_room(replace(there, unit=shared), step) for step in steps] == [
        False
    ] * 3


class EndsInCheckpoint(Inline):
    """Roles whose process ends while a checkpoint is saved: its measurement was logged before."""

    def call(self, role: RoleName, method: Callable[..., Any], *arguments: Any) -> Here[Any]:
        if method is LearnerWorker.save and "step_000002" in str(arguments[0]):
            raise Killed
        return super().call(role, method, *arguments)


def test_a_kill_after_a_measurement_costs_no_byte(tmp_path: Path) -> None:
    spec = measuring(tmp_path)
    whole = attempt(spec, tmp_path / "whole", Inline(spec))
    with pytest.raises(Killed):
        attempt(spec, tmp_path / "parts", EndsInCheckpoint(spec))
    killed = RunReader(tmp_path / "parts", spec.unit.id)
    assert (killed.path / "held_out.jsonl").read_bytes().count(b"\n") == 3
    assert [row.step for row in killed.held_out()] == [0, 1]
    parts = attempt(spec, tmp_path / "parts", Inline(spec))
    assert bytes_of(parts) == bytes_of(whole)
    for name in ("held_out.jsonl", "state.json"):
        assert (parts.path / name).read_bytes() == (whole.path / name).read_bytes()


def test_the_log_says_how_many_held_out_prompts_the_data_leave(tmp_path: Path) -> None:
    spec = measuring(tmp_path, held_out=None)
    run = attempt(spec, tmp_path / "runs", Inline(spec))
    assert "the data leave 4 of 8 held-out prompts (evaluation.held_out)" in (run.log_text() or "")
    assert [len(row.prompts) for row in run.held_out()] == [4, 4, 4]


class Diverging(Inline):
    """Roles whose sampler finds no numbers on held-out prompts."""

    def call_for_two(
        self, role: RoleName, method: Callable[..., Any], *arguments: Any
    ) -> tuple[Here[Any], Here[Any]]:
        if method is RolloutWorker.sample and arguments[0][0].key.purpose == Purpose.HELD_OUT:
            raise NotFinite("the student's logits are not finite")
        return super().call_for_two(role, method, *arguments)


def test_a_student_that_cannot_be_measured_goes_on_training(tmp_path: Path) -> None:
    spec = measuring(tmp_path)
    run = attempt(spec, tmp_path / "runs", Diverging(spec))
    assert run.trained
    assert run.held_out() == []
    assert "step 1: not measured on held-out prompts: the student's" in (run.log_text() or "")


# --- the batch of a budget ---


class Asked(Inline):
    """Roles that note the weight of each blended batch that is sampled."""

    def __init__(self, spec: WorkerSpec):
        super().__init__(spec)
        self.betas: list[float] = []

    def call(self, role: RoleName, method: Callable[..., Any], *arguments: Any) -> Here[Any]:
        if method is RolloutWorker.sample:
            self.betas += [arguments[1].beta] if isinstance(arguments[1], BatchBudget) else []
        return super().call(role, method, *arguments)


def test_a_batch_is_sampled_until_its_mean_kl_is_the_budget(tmp_path: Path) -> None:
    """The batch that counts is that of the last pass, and its β is logged."""
    spec = worker_spec(tmp_path, ROWS, methods=BUDGET)
    roles = Asked(spec)
    run = attempt(spec, tmp_path / "runs", roles)
    passes = [row["passes"] for row in run.timing() if row["phase"] == "train"]
    assert sum(passes) == len(roles.betas)
    assert passes[0] > 1
    last = roles.betas[passes[0] - 1], roles.betas[-1]
    for row, epsilon, beta in zip(run.metrics(), (0.004, 0.002), last, strict=True):
        assert row["behavior_kl"] == pytest.approx(epsilon, rel=TOLERANCE)
        assert row["beta"] == pytest.approx(beta, rel=1e-6)
    # The second step begins where the row of the first one says.
    first = Pass.of(run.metrics()[0])
    assert roles.betas[passes[0]] == next_beta([first], 0.002)


def test_an_engine_that_repeats_no_batch_goes_on_with_the_running_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {name: replace(info, keyed=False) for name, info in training_loop.ENGINES.items()}
    monkeypatch.setattr(training_loop, "ENGINES", other)
    spec = worker_spec(tmp_path, ROWS, methods=BUDGET)
    run = attempt(spec, tmp_path / "runs", Inline(spec))
    passes = [row["passes"] for row in run.timing() if row["phase"] == "train"]
    assert passes[0] > 1
    assert passes[1:] == [1]
    assert run.metrics()[0]["behavior_kl"] == pytest.approx(0.004, rel=TOLERANCE)
    first = Pass.of(run.metrics()[0])
    assert run.metrics()[1]["beta"] == pytest.approx(next_beta([first], 0.002), rel=1e-6)


# --- grading beside scoring and learning ---

WAITS_S = 30.0  # for a thread that a wrong order would keep waiting for ever


class Stage:
    """A grader and a learner of the same trial, who know of each other, and the clock of the step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.calls: list[str] = []
        self.learning, self.learned, self.lapped = (threading.Event() for _ in range(3))
        self.now = 0.0
        monkeypatch.setattr(training_loop, "shared_grader", lambda _: self)

    def monotonic(self) -> float:
        """The time; noted once the learner's lap is taken."""
        now = self.now
        if self.learned.is_set():
            self.lapped.set()
        return now

    def grade_many(self, pairs: Iterable[Any]) -> list[Grade]:
        """What a test puts in its place, and then right answers alone."""
        self.calls.append("grade")
        self.while_grading()
        return [Grade(True, "1") for _ in pairs]

    def while_grading(self) -> None: ...


class Staged(Inline):
    """Roles that tell the stage when the teacher scores and the student learns."""

    def __init__(self, spec: WorkerSpec, stage: Stage):
        super().__init__(spec)
        self._stage = stage

    def call(self, role: RoleName, method: Callable[..., Any], *arguments: Any) -> Here[Any]:
        if method in (TeacherWorker.score, LearnerWorker.step):
            self._stage.calls.append(method.__name__)
        if method is not LearnerWorker.step:
            return super().call(role, method, *arguments)
        self._stage.learning.set()
        answer = super().call(role, method, *arguments)
        self._stage.now += 3.0
        self._stage.learned.set()
        return answer


@pytest.mark.parametrize("methods", [VANILLA, {"trust_region": {"epsilon0": [0.05], "K": [2]}}])
def test_responses_are_graded_while_the_student_learns(
    methods: Mapping[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This grader answers only once the student learns, which a serial step would never reach."""
    stage = Stage(monkeypatch)
    waited: list[bool] = []

    def until_the_student_learns() -> None:
        waited.append(stage.learning.wait(WAITS_S))
        stage.learning.clear()

    monkeypatch.setattr(stage, "while_grading", until_the_student_learns)
    spec = worker_spec(tmp_path, ROWS, methods=methods)
    run = attempt(spec, tmp_path / "runs", Staged(spec, stage))
    assert waited == [True, True]
    assert {row["reward"] for row in run.rollouts()} == {None, 1.0}


def test_the_clock_shows_the_grading_that_nothing_hides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Learning takes three seconds, grading all of these and two more."""
    stage = Stage(monkeypatch)

    def two_seconds_more() -> None:
        assert stage.lapped.wait(WAITS_S)
        stage.now += 2.0
        stage.learned.clear()
        stage.lapped.clear()

    monkeypatch.setattr(stage, "while_grading", two_seconds_more)
    monkeypatch.setattr(step_module, "time", stage)
    spec = worker_spec(tmp_path, ROWS)
    run = attempt(spec, tmp_path / "runs", Staged(spec, stage))
    steps = [row for row in run.timing() if row["phase"] == "train"]
    assert [(row["learn"], row["reward"]) for row in steps] == [(3.0, 2.0)] * 2


def test_rollouts_are_scored_beside_sampling_where_the_runtime_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rollout role then brings the scores; the teacher's start is no time of its step."""
    stage = Stage(monkeypatch)
    monkeypatch.setattr(step_module, "scores_beside", lambda _, runtime, __: runtime.score_beside)
    spec = worker_spec(tmp_path, ROWS)
    runs = []
    for name, beside in (("beside", True), ("after", False)):
        spec = replace(spec, runtime=replace(spec.runtime, score_beside=beside))
        runs.append(attempt(spec, tmp_path / name, Staged(spec, stage)))
        assert ("score" in stage.calls) != beside
    found, expected = (run.metrics() for run in runs)
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-4, nan_ok=True)
    assert [row.get("role") for row in runs[0].timing()][:3] == ["learner", "rollout", "teacher"]


def test_grading_beside_can_be_turned_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    spec = worker_spec(tmp_path, ROWS)
    spec = replace(spec, runtime=replace(spec.runtime, grade_beside=False))
    attempt(spec, tmp_path / "runs", Staged(spec, stage))
    assert stage.calls == ["grade", "score", "step"] * 2


def test_a_grader_that_fails_ends_the_attempt_and_costs_no_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = worker_spec(tmp_path, ROWS)
    training = replace(spec.setup.training, checkpoint_every=1)
    spec = replace(spec, setup=replace(spec.setup, training=training))
    whole = attempt(spec, tmp_path / "whole", Inline(spec))
    with monkeypatch.context() as patched:
        stage = Stage(patched)

        def fail_in_the_second_step() -> None:
            if len(stage.calls) > 3:
                raise RuntimeError("the grading worker does not start")

        patched.setattr(stage, "while_grading", fail_in_the_second_step)
        with pytest.raises(RuntimeError, match="does not start"):
            attempt(spec, tmp_path / "parts", Staged(spec, stage))
    again = RunReader(tmp_path / "parts", spec.unit.id)
    assert [row["step"] for row in again.metrics()] == [0]
    assert again.committed_checkpoints() == [1]
    parts = attempt(spec, tmp_path / "parts", Inline(spec))
    for path in whole.checkpoint_path(2).iterdir():
        name = str(path.relative_to(whole.path))
        assert (parts.path / name).read_bytes() == (whole.path / name).read_bytes(), name


@pytest.mark.parametrize(
    ("method", "measured"),
    [
        ("vanilla", None),
        ("trust_region", {"beta", "teacher_feasible", "acceptance", "behavior_kl"}),
        ("skd", {"replaced", "acceptance", "behavior_kl"}),
    ],
)
def test_some_rollouts_are_kept_token_by_token(
    method: str, measured: set[str] | None, tmp_path: Path
) -> None:
    knobs = {"trust_region": {"epsilon0": [0.05], "K": [2]}, "skd": {"K": [2], "tau_T": [1.0]}}
    run, spec = run_trial(tmp_path, ROWS, {method: knobs.get(method, {})})
    assert run.sampled_steps() == [0, 1]
    rows = [row for row in run.rollouts() if "text" in row]
    samples = [(step, each) for step in run.sampled_steps() for each in run.rollout_samples(step)]
    assert len(samples) == len(rows) == 2 * spec.runtime.rollout_texts
    for (step, sample), row in zip(samples, rows, strict=True):
        assert (step, sample.index, sample.sample) == (row["step"], row["prompt"], row["sample"])
        assert (sample.reward, sample.truncated) == (row["reward"], row["truncated"])
        shown = "".join(sample.tokens)
        assert shown == row["text"] if sample.truncated else shown.startswith(row["text"])
        assert sample.ids is not None
        assert token_texts(sample.ids, make_tokenizer(TINY_SETUP["tokenizer"])) == sample.tokens
        lists = [
            sample.ids,
            sample.tokens,
            sample.student,
            sample.behavior,
            *sample.measured.values(),
        ]
        assert {len(values) for values in lists} == {row["length"]}
        assert sample.prompt.rstrip("\n") in {each["problem"] for each in ROWS}
        if measured is None:
            assert (sample.teacher, sample.survived, sample.measured) == (None, None, {})
            assert sample.student == sample.behavior
        else:
            assert sample.measured.keys() == measured
            assert sample.teacher is not None
            mean = sum(sample.teacher) / row["length"]
            assert mean == pytest.approx(row["teacher_log_prob"], abs=1e-4)
            assert sample.survived is not None
            assert len(sample.survived) == row["length"]


def test_no_rollout_is_kept_where_no_text_is(tmp_path: Path) -> None:
    spec = worker_spec(tmp_path, ROWS)
    spec = replace(spec, runtime=replace(spec.runtime, rollout_texts=0))
    roles = Inline(spec)
    with closing(RunWriter(tmp_path / "runs", spec.unit.id)) as run:
        try:
            list(run_unit(spec, run, roles))
        finally:
            roles.close()
    assert run.sampled_steps() == []
    assert run.rollout_samples(0) == []


LOADS_S, LEARNS_S = 480.0, 3.0


class SlowToLoad(Inline):
    """Roles that take minutes to come up, by the clock of the signs of life, and seconds for a
    step.
    """

    def __init__(self, spec: WorkerSpec, clock: SimpleNamespace):
        super().__init__(spec)
        self._clock = clock

    def call(self, role: RoleName, method: Callable[..., Any], *arguments: Any) -> Here[Any]:
        if method in (
            LearnerWorker.start,
            RolloutWorker.start,
            TeacherWorker.start,
            LearnerWorker.restore,
        ):
            self._clock.now += LOADS_S
        if method is LearnerWorker.step:
            self._clock.now += LEARNS_S
        return super().call(role, method, *arguments)


def test_how_long_models_load_says_nothing_of_how_long_work_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an engine that took eight minutes to load might hang for hours before the watchdog ends
    its process.
    """
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(heartbeat, "time", clock)
    spec = worker_spec(tmp_path, ROWS)
    spec = replace(
        spec, setup=replace(spec.setup, training=replace(spec.setup.training, checkpoint_every=1))
    )
    with closing(RunWriter(tmp_path / "runs", spec.unit.id)) as run:
        for resumed_at in (0, 1):
            monkeypatch.setattr(heartbeat, "_work", heartbeat._Work())
            roles = SlowToLoad(spec, clock)
            assert run.next_step == resumed_at
            assert next(run_unit(spec, run, roles)) == resumed_at + 1
            roles.close()
            assert heartbeat._work.longest == LEARNS_S


def test_a_stage_of_adapters_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    """The learner's state holds adapters and moments alone; checkpoints are plain models."""
    spec = worker_spec(tmp_path, ROWS)
    sft = replace(spec.setup.training.sft, updates=2, checkpoints=[1, 2])
    setup = replace(spec.setup, training=replace(spec.setup.training, sft=sft))
    unit = replace(spec.unit, kind="sft", method=None, knobs={"rank": 2, "lr": 0.01}, steps=2)
    spec, folders = replace(spec, unit=unit, setup=setup), []
    for name, stops in (("whole", (2,)), ("resumed", (1, 2))):
        for stop in stops:
            roles = Inline(spec)
            with closing(RunWriter(tmp_path / name, unit.id)) as run:
                try:
                    for step in run_unit(spec, run, roles):
                        if step == stop and stop < unit.steps:
                            state = load_file(run.checkpoint_path(step) / LEARNER_STATE)
                            assert all(".lora_" in key for key in state)
                            break
                finally:
                    roles.close()
        folders.append(RunReader(tmp_path / name, unit.id).checkpoint_path(2))
    for file in ("model.safetensors", CANARY):
        whole, resumed = ((folder / file).read_bytes() for folder in folders)
        assert whole == resumed, file
    start = load_file(Path(spec.student.path) / "model.safetensors")
    assert set(load_file(folders[0] / "model.safetensors")) == set(start)


# --- what a training step tells people beside its row of numbers ---


class Logged:
    """A run directory of which only the log is looked at."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.log = SimpleNamespace(line=self.lines.append)


def step_of(method: str, knobs: dict[str, Any], run: Logged) -> TrainingStep:
    unit = Unit("a", "trial", "tiny", 0, 10, {}, method=method, knobs=knobs)
    spec = SimpleNamespace(unit=unit)
    trial = SimpleNamespace(spec=spec, run=run, roles=None, tokenizer=None, grader=None)
    return TrainingStep(cast(Any, trial), cast(Any, None))


def test_the_log_says_once_when_epsilon_sinks_below_the_rounding() -> None:
    run = Logged()
    step = step_of("trust_region", {"epsilon0": 0.05, "K": 4}, run)
    for number, divergence in enumerate((0.002, 0.002, 0.02, 0.02, 0.02)):
        step.note_rounding(number, {"sampler_kl": divergence})
    assert len(run.lines) == 1, run.lines
    assert run.lines[0].startswith("step 3: ε 0.013 nats is below the 0.02 nats between")


@pytest.mark.parametrize(
    ("method", "knobs", "learned"),
    [
        ("trust_region", {"epsilon0": 0.05, "K": 4}, {"sampler_kl": 1e-13}),
        ("trust_region", {"epsilon0": 0.05, "K": 4}, {}),
        ("vanilla", {}, {"sampler_kl": 1.0}),
    ],
)
def test_nothing_is_said_without_a_ball_that_is_too_small(
    method: str, knobs: dict[str, Any], learned: dict[str, float]
) -> None:
    run = Logged()
    for number in range(4):
        step_of(method, knobs, run).note_rounding(number, learned)
    assert run.lines == []
