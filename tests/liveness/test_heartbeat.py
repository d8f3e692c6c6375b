"""The watchdog ends processes that are stopped, silent or hanging, and no others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from socket import gethostname

import pytest

from orchestrator.liveness import heartbeat
from orchestrator.liveness.heartbeat import (
    HANGS_AFTER_S,
    HANGS_FACTOR,
    SILENT_LOOKS,
    STOPPED_LOOKS,
    Beat,
    Pulse,
    Watchdog,
    end_process,
    pulse_path,
    read_beat,
)
from orchestrator.liveness.processes import born, is_stopped

UNIT = "unit"


class Frozen:
    """A watchdog over one unit, and what it has ended."""

    def __init__(self, runs: Path):
        self.path = pulse_path(runs, UNIT)
        self.path.parent.mkdir()
        self.ended: list[Beat] = []
        self.reasons: list[str] = []
        self.dog = Watchdog(runs, lambda: [UNIT], self.end)

    def end(self, name: str, beat: Beat, reason: str) -> None:
        assert name == UNIT
        self.ended.append(beat)
        self.reasons.append(reason)

    def write(self, beat: Beat) -> None:
        self.path.write_text(json.dumps(asdict(beat)))


@pytest.fixture
def frozen(tmp_path: Path) -> Frozen:
    return Frozen(tmp_path)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"]) as process:
        yield process
        process.kill()


def beat_of(pid: int, **changes: float) -> Beat:
    beat = Beat(gethostname(), "node", pid, born(pid) or 0, 1, idle_s=0.0, longest_s=1.0)
    return replace(beat, **changes)


def test_a_process_that_beats_and_works_is_left_alone(frozen: Frozen) -> None:
    for number in range(5 * SILENT_LOOKS):
        frozen.write(beat_of(os.getpid(), number=number))
        assert frozen.dog.look() == []
    assert frozen.ended == []


def test_silence_is_counted_in_looks(frozen: Frozen) -> None:
    frozen.write(beat_of(os.getpid()))
    looks = [frozen.dog.look() for _ in range(3 * SILENT_LOOKS)]
    assert [index for index, found in enumerate(looks) if found] == [SILENT_LOOKS]
    assert [beat.pid for beat in frozen.ended] == [os.getpid()]
    assert "no sign of life" in frozen.reasons[0]


def test_silence_on_another_host_counts_too(frozen: Frozen) -> None:
    frozen.write(replace(beat_of(1), host="another", born=7))
    for _ in range(SILENT_LOOKS + 1):
        frozen.dog.look()
    assert [(beat.host, beat.node, beat.pid) for beat in frozen.ended] == [("another", "node", 1)]


def test_one_beat_ends_the_silence(frozen: Frozen) -> None:
    for number in (1, 2):
        frozen.write(beat_of(os.getpid(), number=number))
        for _ in range(SILENT_LOOKS):
            frozen.dog.look()
    assert frozen.ended == []


def test_a_process_that_is_gone_is_left_to_tune(frozen: Frozen) -> None:
    frozen.write(replace(beat_of(os.getpid()), born=1))
    for _ in range(2 * SILENT_LOOKS):
        frozen.dog.look()
    assert frozen.ended == []


@pytest.mark.parametrize(
    ("idle_s", "longest_s", "hangs"),
    [
        (HANGS_AFTER_S - 1, 1.0, False),
        (HANGS_AFTER_S + 1, 1.0, True),
        (HANGS_AFTER_S + 1, HANGS_AFTER_S, False),
        (HANGS_FACTOR * HANGS_AFTER_S + 1, HANGS_AFTER_S, True),
    ],
)
def test_how_long_work_may_take_follows_from_the_work(
    idle_s: float, longest_s: float, hangs: bool, frozen: Frozen
) -> None:
    for number in (1, 2):
        frozen.write(beat_of(os.getpid(), number=number, idle_s=idle_s, longest_s=longest_s))
        frozen.dog.look()
    assert bool(frozen.ended) is hangs


def test_an_engine_may_take_its_time_to_start(tmp_path: Path) -> None:
    """A slow file system gets `runtime.engine_start_s`, in which no work can be seen."""
    path = pulse_path(tmp_path, UNIT)
    path.parent.mkdir()
    ended: list[str] = []
    dog = Watchdog(tmp_path, lambda: [UNIT], lambda name, beat, why: ended.append(why), 3000.0)
    for number, idle_s in enumerate((3000.0, 4000.0, 5000.0)):
        beat = beat_of(os.getpid(), number=number, idle_s=idle_s)
        path.write_text(json.dumps(asdict(beat)))
        dog.look()
    assert ended == ["has done nothing for 5000 s"]


def test_a_stopped_process_is_ended_and_its_successor_is_not(
    frozen: Frozen, sleeper: subprocess.Popen[bytes]
) -> None:
    frozen.write(beat_of(sleeper.pid))
    frozen.dog.look()
    sleeper.send_signal(signal.SIGSTOP)
    while not is_stopped(sleeper.pid):
        time.sleep(0.01)
    looks = [frozen.dog.look() for _ in range(STOPPED_LOOKS)]
    assert [bool(found) for found in looks] == [False] * (STOPPED_LOOKS - 1) + [True]
    end_process(sleeper.pid, frozen.ended[0].born)
    assert sleeper.wait() == -signal.SIGKILL
    frozen.write(beat_of(os.getpid()))
    assert frozen.dog.look() == []


def test_another_process_of_the_same_id_is_not_ended(sleeper: subprocess.Popen[bytes]) -> None:
    end_process(sleeper.pid, (born(sleeper.pid) or 0) + 1)
    assert sleeper.poll() is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', "[" * 100_000])
def test_a_beat_that_cannot_be_read_is_none(text: str, frozen: Frozen) -> None:
    frozen.path.write_text(text)
    assert frozen.dog.look() == []


def test_a_pulse_says_who_beats_and_that_work_gets_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.01)
    path = pulse_path(tmp_path, UNIT)
    beats = Pulse(path, "node")
    first = read_beat(path)
    assert first is not None
    assert (first.host, first.node, first.pid, first.born) == (
        gethostname(),
        "node",
        os.getpid(),
        born(os.getpid()),
    )
    while (later := read_beat(path)) is None or later.idle_s < 0.05:
        time.sleep(0.01)
    assert later.number > first.number
    heartbeat.advance()
    while (now := read_beat(path)) is None or now.longest_s < 0.05:
        time.sleep(0.01)
    assert now.idle_s < later.idle_s + now.longest_s
    beats.stop()
    assert not path.exists()


def test_what_fails_beside_the_beats_ends_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.01)
    path, calls = pulse_path(tmp_path, UNIT), []

    def fail() -> None:
        calls.append(read_beat(path))
        raise RuntimeError("no such sensor")

    beats = Pulse(path, beside=fail)
    while len(calls) < 3:
        time.sleep(0.01)
    beats.stop()
    numbers = [beat.number for beat in calls if beat is not None]
    assert numbers == sorted(set(numbers))


def test_loading_is_not_the_longest_piece_of_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.01)
    path = pulse_path(tmp_path, UNIT)
    beats = Pulse(path)
    with heartbeat.loading():
        while (during := read_beat(path)) is None or during.idle_s < 0.3:
            time.sleep(0.01)
        heartbeat.advance()  # as what loads may do, too
    while (after := read_beat(path)) is None or after.idle_s > during.idle_s:
        time.sleep(0.01)
    beats.stop()
    assert after.longest_s < during.idle_s, (
        "what came before the loading counts, which is next to nothing"
    )
