"""TensorBoard as a tracker: an event file for each unit and for the results, in `runs/.tensorboard`.

The bytes of an event file follow from the run directory and the time in the file's name, so no note
of the written events is needed. Where they have changed, a new file takes the place of the old one.
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
from orchestrator.tracking.projection import FINISHED, OPEN, Projection, Results, TrackedTable

FOLDER = ".tensorboard"
PREFIX = "events.out.tfevents."  # of all event files; TensorBoard reads them in the order of names

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
            write_events(self.folder / name, events)
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
    """Yield progress, the results tables and the sentences below them as texts."""
    yield _texts("progress", results.progress, file_time)
    for name, table in results.tables.items():
        yield _table(name, table, file_time)
    yield Event(wall_time=file_time, summary=text_pb("notes", "\n\n".join(results.notes)))


def _texts(name: str, values: dict[str, Any], at: float) -> Event:
    return _table(name, (["key", "value"], [[key, values[key]] for key in values]), at)


def _table(name: str, table: TrackedTable, at: float) -> Event:
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


def write_events(folder: Path, events: EventsOf) -> None:
    """Put an event file into `folder`, unless the newest there holds the same; whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    files = sorted(folder.glob(f"{PREFIX}*"))
    file_time = int(time.time())
    if files:
        written_at = int(files[-1].name.removeprefix(PREFIX).partition(".")[0])
        if files[-1].read_bytes() == _content(events, written_at):
            return
        file_time = max(file_time, written_at + 1)  # readers sort the files of a folder by name
    scratch = folder / "new.tmp"
    scratch.write_bytes(_content(events, file_time))
    os.replace(scratch, folder / f"{PREFIX}{file_time}.trb")
    # A TensorBoard that has the replaced file open looks for the next one at its end. Without the
    # file it would never do so, so the file stays, emptied, until the next replacement.
    for file in files[:-1]:
        file.unlink()
    if files:
        os.truncate(files[-1], 0)


def _content(events: EventsOf, file_time: int) -> bytes:
    """The bytes of an event file: each event with its length and checksums."""
    start = SessionLog(status=SessionLog.START)  # makes readers drop the events of older files
    head = [
        Event(wall_time=file_time, file_version="brain.Event:2"),
        Event(wall_time=file_time, session_log=start),
    ]
    buffer = io.BytesIO()
    writer = RecordWriter(buffer)
    for event in [*head, *events(file_time)]:
        writer.write(event.SerializeToString(deterministic=True))
    return buffer.getvalue()
