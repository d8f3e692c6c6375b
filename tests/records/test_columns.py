"""`columns` is the whole list: training logs what stands there and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.policy import laws, spec
from orchestrator.policy.spec import Behavior, Objective
from orchestrator.records.log import COLUMNS, Steps, columns_of_step
from orchestrator.rollouts import Rollouts
from orchestrator.trial.diagnostics import step_metrics
from orchestrator.workers.digests import RolloutDigest
from orchestrator.workers.members import Engines, LearnerWorker, RolloutWorker, TeacherWorker
from tests import tiny


class Step:
    """One training step of the torch engine, put together as `trial.training_loop` does."""

    def __init__(self, folder: Path):
        spec = tiny.worker_spec(folder)
        engines = Engines(spec)
        self.rollout, self.teacher = RolloutWorker(spec, engines), TeacherWorker(spec, engines)
        self.learner = LearnerWorker(spec, engines)
        self.rollout.start(step=0)
        for role in (self.teacher, self.learner):
            role.start()

    def logged(self, rollouts: Rollouts, digest: RolloutDigest, goal: Objective) -> set[str]:
        """Keys of the row of this step; a supervised one has no scores."""
        scores, judged = rollouts.teacher, digest.scores
        if judged is None and goal.needs_teacher:
            scores, judged = self.teacher.score(rollouts)
        learned = self.learner.step(rollouts, scores, goal, 0)
        rewards: list[float | None] = [float(row % 2) for row in range(len(rollouts.requests))]
        return set(learned) | set(step_metrics(digest, judged, rewards))


@pytest.mark.parametrize("behavior", tiny.BEHAVIORS, ids=str)
def test_a_step_logs_the_columns_of_its_behavior(behavior: Behavior, tmp_path: Path) -> None:
    step = Step(tmp_path)
    logged = step.logged(
        *step.rollout.sample(tiny.requests(2), behavior), Objective("renormalized")
    )
    assert logged == columns_of_step(behavior.needs_teacher, behavior.measures)


def test_a_step_of_the_supervised_stage_logs_what_every_step_does(tmp_path: Path) -> None:
    step = Step(tmp_path)
    always = {key for key, column in COLUMNS.items() if column.logged is Steps.ALL}
    assert step.logged(*step.teacher.sample(tiny.requests(2)), Objective("nll")) == always


def test_every_column_is_logged_by_some_behavior_and_every_behavior_is_looked_at() -> None:
    steps = [
        columns_of_step(behavior.needs_teacher, behavior.measures) for behavior in tiny.BEHAVIORS
    ]
    assert set().union(*steps) == set(COLUMNS)
    shipped = {kind for kind in laws.law.registry if kind is getattr(spec, kind.__name__, None)}
    assert {type(behavior) for behavior in tiny.BEHAVIORS} == shipped


def test_a_column_that_is_shown_says_how() -> None:
    for key, column in COLUMNS.items():
        assert column.meaning.endswith("."), key
        assert bool(column.heading) >= bool(column.decimals), key
        assert column.unit in ("", "share", "nats", "tokens"), key
        shown_in_per_cent = [
            text.endswith("(%)") for text in (column.figure, column.heading) if text
        ]
        assert all(text is (column.unit == "share") for text in shown_in_per_cent), key
