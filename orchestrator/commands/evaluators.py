"""The evaluators of `trb eval`: this process, or one process for each GPU."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from orchestrator.errors import UserError
from orchestrator.selection.pending_slices import PendingSlice
from orchestrator.trial.evaluation_loop import EvaluationFailed
from orchestrator.trial.model_evaluation import ModelEvaluation

LOOK_S = 2.0  # between two looks at what the processes have done


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
                raise UserError(
                    "eval: an evaluator died; the same command goes on from what is there"
                )
            time.sleep(LOOK_S)


def _side_by_side(evaluation: ModelEvaluation, count: int, done: Callable[[], None]) -> None:
    gpus = visible_gpus()
    spawn = multiprocessing.get_context(
        "spawn"
    )  # a fork would share this process's threads and CUDA state
    processes: list[BaseProcess] = []
    complaints: list[Connection] = []
    for number in range(count):
        ours, theirs = spawn.Pipe(duplex=False)
        gpu = gpus[number % len(gpus)] if gpus else None
        process = spawn.Process(
            target=_evaluator, args=(evaluation, gpu, theirs), name=f"evaluator {number + 1}"
        )
        process.start()
        theirs.close()
        processes.append(process)
        complaints.append(ours)
    try:
        while any(process.is_alive() for process in processes):
            wait([process.sentinel for process in processes if process.is_alive()], LOOK_S)
            done()
    finally:
        for process in processes:
            process.terminate()
            process.join()
    for complaint in complaints:
        if complaint.poll():
            try:
                error = complaint.recv()
            except EOFError:  # it ended without one
                continue
            raise error


def _evaluator(evaluation: ModelEvaluation, gpu: str | None, complaint: Connection) -> None:
    """Evaluate slices in a process of its own. Libraries see its GPU only: CUDA begins with the
    first slice.
    """
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command ends its evaluators
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        for _ in _causes(evaluation):
            pass
    except UserError as error:
        complaint.send(error)
    except Exception as error:
        complaint.send(RuntimeError(f"{type(error).__name__}: {error}"))
        raise


def _causes(evaluation: ModelEvaluation) -> Iterator[PendingSlice]:
    """Its slices; raises what went wrong, and lets go of the slice in which it did."""
    try:
        yield from evaluation.evaluate()
    except EvaluationFailed as failed:
        failed.claim.release(remove=True)
        raise failed.__cause__ or failed from None


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
