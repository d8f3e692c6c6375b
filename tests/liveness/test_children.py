"""Child processes: what they answer, how they fail, and that none outlives its parent."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import IO

import pytest

from orchestrator.errors import UserError
from orchestrator.liveness import heartbeat
from orchestrator.liveness.children import (
    LOOK_S,
    Child,
    ChildFailed,
    ChildLost,
    Result,
    Sign,
    messages,
)
from orchestrator.liveness.processes import processes
from tests.sweeps import ROOT

MODULE = "tests.liveness.obedient_child"


def opened(prefix: str = "> ", output: IO[bytes] | None = None) -> Child:
    child = Child(MODULE, f"child {prefix}", output=output)
    child.send(prefix)
    return child


@pytest.fixture
def child() -> Iterator[Child]:
    child = opened()
    yield child
    child.end()


def until_gone(*pids: int) -> None:
    while any(pid in processes() for pid in pids):
        time.sleep(0.05)


def test_calls_are_answered_in_order_with_their_messages(child: Child) -> None:
    assert child.receive() == Result(None)
    child.send(("say", ["a", "b"]))
    child.send(("say", ["c"]))
    answers = [child.receive() for _ in range(5)]
    assert answers == ["a", "b", Result("> a b"), "c", Result("> c")]
    assert child.ask(("say", [])) == "> "


def test_an_error_comes_with_its_traceback_and_the_child_goes_on(child: Child) -> None:
    child.receive()
    with pytest.raises(ChildFailed, match="KeyError: 'nothing here'") as raised:
        child.ask(("raise", "picklable"))
    assert isinstance(raised.value.error, KeyError)
    (note,) = raised.value.error.__notes__
    assert note.startswith("in child > :")
    assert "obedient_child.py" in note
    with pytest.raises(ChildFailed, match="OwnError: oneother"):
        child.ask(("raise", "with a lock"))
    assert child.ask(("say", ["still", "here"])) == "> still here"


def test_a_child_that_was_refused_can_be_opened_again() -> None:
    child = opened("")
    with pytest.raises(ChildFailed) as refused:
        child.receive()
    error = refused.value.error
    assert isinstance(error, UserError)
    assert (str(refused.value), error.key) == (str(error), "prefix")
    child.ask("another")
    assert child.ask(("say", [])) == "another"
    child.end()


def test_a_child_that_dies_is_lost_with_its_last_words() -> None:
    with tempfile.TemporaryFile() as output:
        child = opened(output=output)
        child.receive()
        with pytest.raises(ChildLost, match="child >  died") as lost:
            child.ask(("die", "farewell"))
        assert lost.value.printed == "farewell\n"
        assert not child.alive()
        with pytest.raises(ChildLost):
            child.send(("say", []))


def test_a_module_that_cannot_start_is_lost_too() -> None:
    with tempfile.TemporaryFile() as output:
        child = Child("tests.liveness.no_such_module", "nobody", output=output)
        with pytest.raises(ChildLost) as lost:
            child.ask("anything")
        assert "no_such_module" in lost.value.printed


def test_silence_has_a_limit_and_work_has_none(child: Child) -> None:
    child.receive()
    done = heartbeat.pieces()
    child.ask(("work", 6 * LOOK_S), silence_s=4 * LOOK_S)
    assert heartbeat.pieces() > done + 1, "signs of a child are signs of its parent"
    with pytest.raises(ChildLost, match="has been silent for 1 s"):
        child.ask(("sleep", 600), silence_s=1.0)
    assert not child.alive()


def test_the_end_of_a_child_is_that_of_its_group(child: Child) -> None:
    child.receive()
    grandchild = child.ask(("spawn", None))
    assert grandchild in processes()
    child.end()
    assert not {child.pid, grandchild} & set(processes())
    child.end()


def test_answers_of_several_come_as_they_are_ready() -> None:
    children = [opened(prefix) for prefix in "abc"]
    for _, message in messages(children):
        assert message == Result(None)
    for child, call in zip(children, [("say", ["x"]), ("die", ""), ("raise", "")], strict=True):
        child.send(call)
    answers: dict[int, list[object]] = {0: [], 1: [], 2: []}
    for index, message in messages(children):
        if not isinstance(message, Sign):
            answers[index].append(message)
    assert answers[0] == ["x", Result("ax")]
    assert [type(message) for message in answers[1] + answers[2]] == [ChildLost, ChildFailed]
    for child in children:
        child.end()


PARENT = f"""
import sys
from orchestrator.liveness.children import Child
child = Child({MODULE!r}, "child")
child.ask("> ")
print(child.pid, child.ask(("spawn", None)), flush=True)
if sys.argv[1] != "idle":
    child.send((sys.argv[1], 600))
print("sent", flush=True)
child.receive()
"""


@pytest.mark.parametrize("busy", ["idle", "sleep", "work"])
def test_nothing_outlives_a_killed_parent(busy: str) -> None:
    command = [sys.executable, "-c", PARENT, busy]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child, grandchild = map(int, parent.stdout.readline().split())
        assert parent.stdout.readline() == "sent\n"
        parent.kill()
        until_gone(child, grandchild)
