"""TensorBoard as a tracker: an event file for each unit and for the results, in `runs/.tensorboard`.

The bytes of an event file follow from the run directory and the time in the file's name. An update
appends the records that the file lacks. A kill leaves a shorter file, which the next update
continues, so no note of the written records is needed. If records have changed, for example since a
score got more samples, a new file takes the place of the old one.
"""

# pyright: reportAttributeAccessIssue=false
# Modules of protobuf make their classes when they are imported.

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.record_writer import RecordWriter

from orchestrator.experiment.units import digest
from orchestrator.selection.study import Study
from orchestrator.sheet import Sheet, to_markdown
from orchestrator.tracking.projection import FINISHED, OPEN, Projection, Results, Table

FOLDER = ".tensorboard"
PREFIX = "events.out.tfevents."  # of all event files; TensorBoard reads them in the order of names
HEAD_BYTES, TAIL_BYTES = 12, 4  # around the data of a record: its length, and two checksums

EventsOf = Callable[[float], Iterable[Event]]  # takes the time of the event file


def open_tracker(study: Study) -> TensorBoard:
    return TensorBoard(study.runs / FOLDER)


@dataclass
class TensorBoard:
    """Event files in `folder`, which has a folder for each unit and for the results."""

    folder: Path
    _written: dict[str, str] = field(default_factory=dict)  # id → digest of its content

    @property
    def name(self) -> str:
        return "TensorBoard"

    @property
    def place(self) -> str:
        return str(self.folder)

    def announcement(self) -> str:
        return f"TensorBoard: tensorboard --logdir {self.folder}"

    def conclusion(self) -> str:
        return self.announcement()

    def show(self, projection: Projection) -> None:
        self._write(projection.unit.id, projection.content, partial(unit_events, projection))

    def show_results(self, results: Results) -> None:
        self._write(results.id, results.content, partial(results_events, results))

    def _write(self, name: str, content: list[Any], events: EventsOf) -> None:
        """Bring a folder up to date, unless this process has written the same content already."""
        if self._written.get(name) != digest(content):
            bring_up_to_date(self.folder / name, events)
            self._written[name] = digest(content)


# --- events; one without a time in the records gets the time of its file ---


def unit_events(projection: Projection, file_time: float) -> Iterator[Event]:
    """Yield a unit as TensorBoard's events: hyperparameters, configuration, rows and its end."""
    unit = projection.unit
    clock = projection.clock()
    at = file_time
    started = plugin_data_pb2.SessionStartInfo(start_time_secs=at)
    hparams = {"method": unit.method or unit.kind, "setup": unit.setup, "seed": unit.seed}
    for key, value in (hparams | unit.knobs).items():
        if isinstance(value, str):
            started.hparams[key].string_value = value
        elif value is not None:
            started.hparams[key].number_value = value
    about = _session(metadata.SESSION_START_INFO_TAG, session_start_info=started)
    yield Event(wall_time=at, summary=about)
    yield _texts("configuration", projection.config, at)
    for step, row in projection.rows.items():
        at = clock.get(step, at)  # the scores of the last checkpoint have no step of training
        scalars = [Summary.Value(tag=tag, simple_value=value) for tag, value in row.items()]
        yield Event(step=step, wall_time=at, summary=Summary(value=scalars))
    if projection.outcome != OPEN:
        yield _texts("summary", projection.summary, at)
        done = projection.outcome == FINISHED
        status = api_pb2.STATUS_SUCCESS if done else api_pb2.STATUS_FAILURE
        ended = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=at)
        about = _session(metadata.SESSION_END_INFO_TAG, session_end_info=ended)
        yield Event(wall_time=at, summary=about)


def results_events(results: Results, file_time: float) -> Iterator[Event]:
    """Yield the results tables and the sentences below them as texts."""
    for name, table in results.tables.items():
        yield _table(name, table, file_time)
    yield Event(wall_time=file_time, summary=text_pb("notes", "\n\n".join(results.notes)))


def _texts(name: str, values: dict[str, Any], at: float) -> Event:
    return _table(name, (["key", "value"], [[key, values[key]] for key in values]), at)


def _table(name: str, table: Table, at: float) -> Event:
    """A table as Markdown, which TensorBoard shows as a table."""
    headings, rows = table
    texts = []
    for row in rows:
        texts.append(["" if value is None else str(value) for value in row])
    lines = to_markdown(Sheet.of(headings, texts))
    return Event(wall_time=at, summary=text_pb(name, "\n".join(lines)))


def _session(tag: str, **part: Any) -> Summary:
    """One end of a session of the plugin for hyperparameters."""
    content = plugin_data_pb2.HParamsPluginData(version=metadata.PLUGIN_DATA_VERSION, **part)
    # Without `deterministic`, protobuf may write a mapping in another order in each process.
    plugin = SummaryMetadata.PluginData(
        plugin_name=metadata.PLUGIN_NAME, content=content.SerializeToString(deterministic=True)
    )
    about = SummaryMetadata(plugin_data=plugin)
    return Summary(value=[Summary.Value(tag=tag, metadata=about, tensor=metadata.NULL_TENSOR)])


# --- event files ---


def bring_up_to_date(folder: Path, events: EventsOf) -> None:
    """Write events that `folder`'s event file lacks, or all into a new file if some changed."""
    folder.mkdir(parents=True, exist_ok=True)
    files = sorted(folder.glob(f"{PREFIX}*"))
    file_time = int(time.time())
    if files:
        newest = files[-1]
        written_at = int(newest.name.removeprefix(PREFIX).partition(".")[0])
        written, records = newest.read_bytes(), _records(events, written_at)
        whole, kept = _agreeing(written, records)
        lacking = _framed(records[whole:])
        # After the whole records the file ends, or has a part of the next one that a kill cut off.
        # Any other bytes are records that have changed.
        if lacking.startswith(written[kept:]):
            if lacking:
                _write_at(newest, kept, lacking)
            return
        file_time = max(file_time, written_at + 1)  # readers sort the files of a folder by name
    _write_at(folder / f"{PREFIX}{file_time}.trb", 0, _framed(_records(events, file_time)))
    # A TensorBoard that has the replaced file open looks for the next one at its end. Without the
    # file it would never do so, so the file stays, emptied, until the next replacement.
    for file in files[:-1]:
        file.unlink()
    if files:
        os.truncate(files[-1], 0)


def _records(events: EventsOf, file_time: int) -> list[bytes]:
    """All records of an event file, without lengths and checksums."""
    start = SessionLog(status=SessionLog.START)  # makes readers drop the events of older files
    head = [
        Event(wall_time=file_time, file_version="brain.Event:2"),
        Event(wall_time=file_time, session_log=start),
    ]
    return [event.SerializeToString(deterministic=True) for event in [*head, *events(file_time)]]


def _agreeing(written: bytes, records: list[bytes]) -> tuple[int, int]:
    """The number of records that a file begins with, and the bytes that they take there."""
    start = 0
    for count, record in enumerate(records):
        end = start + HEAD_BYTES + len(record) + TAIL_BYTES
        # Comparing the data alone spares the checksums, which Python computes slowly.
        if end > len(written) or written[start + HEAD_BYTES : end - TAIL_BYTES] != record:
            return count, start
        start = end
    return len(records), start


def _framed(records: list[bytes]) -> bytes:
    """The bytes of records in a file, with lengths and checksums."""
    buffer = io.BytesIO()
    writer = RecordWriter(buffer)
    for record in records:
        writer.write(record)
    return buffer.getvalue()


def _write_at(file: Path, position: int, content: bytes) -> None:
    """Write `content` from a position of the file on, in place of all that follows there."""
    with open(file, "r+b" if file.exists() else "xb") as opened:
        opened.seek(position)
        opened.truncate()
        opened.write(content)
