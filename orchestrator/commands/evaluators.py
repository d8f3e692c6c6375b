"""The evaluators of `trb eval`: this process, or a child of it for each GPU."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

from orchestrator.errors import UserError
from orchestrator.liveness.children import (
    Child,
    ChildFailed,
    ChildLost,
    Parent,
    Result,
    messages,
    serve,
)
from orchestrator.selection.pending_slices import PendingSlice
from orchestrator.trial.evaluation_loop import EvaluationFailed, ModelEvaluation

MODULE = "orchestrator.commands.evaluators"
LOOK_S = 2.0  # between two looks at the slices of others


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return named or [str(index) for index in range(torch.cuda.device_count())]


def run_evaluators(evaluation: ModelEvaluation, count: int, done: Callable[[], None]) -> None:
    """Take all slices with `count` evaluators; `done` is called now and then, after slices came in.

    Raises what an evaluator raised. What is there stays, and another call goes on from it.
    """
    evaluation.begin()
    while evaluation.pending():
        if count == 1:
            for _ in _causes(evaluation):
                done()
        else:
            _side_by_side(evaluation, count, done)
        if error := evaluation.error():
            raise UserError(error)
        if evaluation.pending():
            # Another command works on the rest, or an evaluator died with a slice in its hands.
            if not evaluation.at_work():
                advice = "the same command goes on from the slices that are there"
                raise UserError(f"eval: an evaluator died; {advice}")
            time.sleep(LOOK_S)


def _side_by_side(evaluation: ModelEvaluation, count: int, done: Callable[[], None]) -> None:
    """Evaluate with children. One that dies is left out; an error of one is raised at the end."""
    gpus = visible_gpus()
    children: list[Child] = []
    failures: list[ChildFailed] = []
    try:
        for number in range(count):
            # Libraries of an evaluator see its GPU alone.
            gpu = {"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if gpus else None
            children.append(Child(MODULE, f"evaluator {number + 1}", gpu))
            children[-1].send(evaluation)
        for _, message in messages(children):
            if isinstance(message, ChildFailed):
                failures.append(message)
            elif not isinstance(message, ChildLost | Result):  # a slice came in
                done()
    finally:
        for child in children:
            child.end()
    for failure in failures:
        if isinstance(failure.error, UserError):
            raise failure.error
        raise RuntimeError(str(failure)) from failure


def _serve_evaluator(evaluation: ModelEvaluation, parent: Parent) -> None:
    """Evaluate slices in a child, and send the number of responses of each."""
    for pending in _causes(evaluation):
        parent.send(pending.part.responses)


def _causes(evaluation: ModelEvaluation) -> Iterator[PendingSlice]:
    """Its slices; raises what went wrong, and lets go of the slice in which it did."""
    try:
        yield from evaluation.evaluate()
    except EvaluationFailed as failed:
        failed.claim.release(remove=True)
        raise failed.__cause__ or failed from None


if __name__ == "__main__":
    serve(_serve_evaluator)
