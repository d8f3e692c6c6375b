"""Reads values that an experiment leaves to local files, such as sha256, shapes and stop ids.

Loading an experiment reads each file that it names without a sha256, so that ids and plans depend
on its content. The user gets a note for each such file, with the line that pins it.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from orchestrator.config import BenchmarkRun, Data, Setup
from orchestrator.data.benchmarks import BENCHMARKS, check_source, load_benchmark
from orchestrator.data.files import data_file, file_sha256, iterate_rows
from orchestrator.errors import UserError, did_you_mean, refuse
from orchestrator.models.folders import (
    CONFIG_KEYS,
    check_folder,
    content_sha256,
    embedding_rows,
    local_folder,
    shape_of,
    stop_ids,
    token_ids,
)
from orchestrator.models.locate import check_passes
from orchestrator.pair import Model, Vocabulary
from orchestrator.start_up import default_runs

ROLES = ("student", "teacher")


def completed(name: str, setup: Setup, data_dir: str | None) -> tuple[Setup, list[str]]:
    """Complete `setup` from its local files, and note each sha256 found in this way.

    Only values that the setup leaves open are read. `name` is the setup's. Without a `data_dir`
    training files stay as they are. UserError if a file to be read is missing or broken.
    """
    notes: list[str] = []
    if data_dir is not None:
        setup = replace(setup, data=_data(name, setup.data, data_dir, notes))
    runs = {key: _benchmark(key, run, notes) for key, run in setup.evaluation.benchmarks.items()}
    setup = replace(setup, evaluation=replace(setup.evaluation, benchmarks=runs))
    for role in ROLES:
        setup = replace(setup, **{role: _model(f"{name}.{role}", getattr(setup, role), notes)})
    return replace(setup, vocabulary=_vocabulary(name, setup)), notes


def check_local(name: str, setup: Setup, passes: bool = False) -> None:
    """Call `check_folder` on the setup's models on this machine; `name` is the setup's.

    With `passes` also compare our passes with transformers' own, which takes seconds at first.
    """
    folders: dict[str, Path] = {}
    for role in ROLES:
        folder = local_folder(getattr(setup, role))
        if folder is not None:
            check_folder(f"{name}.{role}", folder, tokenizer=role == "teacher")
            folders[role] = folder
    if passes:
        for role, folder in folders.items():
            check_passes(f"{name}.{role}", folder, setup.context)


def _data(name: str, data: Data, data_dir: str, notes: list[str]) -> Data:
    """The training data with the sha256 of each file that the setup leaves open."""
    files = list(data.files)
    for position, entry in enumerate(files):
        if data.source == "jsonl" and entry.file and not entry.sha256:
            path = data_file(entry.file, data_dir)
            files[position] = replace(entry, sha256=file_sha256(path))
            key = f"{name}.data.files[{position}]"
            notes.append(_pin(key, path, f"sha256: {files[position].sha256}"))
    data = replace(data, files=files)
    path = Path(data.path).expanduser() if data.path else None
    if data.source == "openthoughts" and path is not None and path.exists():
        data = replace(data, path=str(path.resolve()))
        if data.revision is None:
            revision = content_sha256(path) if path.is_dir() else file_sha256(path)
            data = replace(data, revision=revision)
            notes.append(_pin(f"{name}.data", path, f"revision: {revision}"))
    return data


def _pin(key: str, path: Path, line: str) -> str:
    return f"{key}: the sha256 of {path} is that of its present content; to pin it: {line}"


def _benchmark(key: str, run: BenchmarkRun, notes: list[str]) -> BenchmarkRun:
    path = Path(run.path).expanduser() if run.path else None
    if path is None or not path.exists():
        return run
    run = replace(run, path=str(path.resolve()))
    where = f"evaluation.benchmarks.{key}"
    if run.revision is None:
        if path.is_dir():
            raise refuse(f"{where}.path", str(path), "a .jsonl or .parquet file")
        run = replace(run, revision=file_sha256(path))
        notes.append(_pin(where, path, f"{where}.revision={run.revision}"))
    if key not in BENCHMARKS and run.problems is None:
        run = replace(run, problems=sum(1 for _ in iterate_rows(path)))
        check_source(key, run)
        # The error of a row without a gold comes now, and not only when the sweep begins.
        load_benchmark(key, None, run)
    return run


def _model(key: str, model: Model, notes: list[str]) -> Model:
    """A model with its folder's sha256, sizes and stop id, as far as the setup leaves them open."""
    folder = local_folder(model)
    if folder is None:
        _check_not_meant_as_folder(key, model)
        return model
    if model.revision is None:
        model = replace(model, revision=content_sha256(folder))
        notes.append(_pin(key, folder, f"revision: {model.revision}"))
    elif set(model.revision) == {"0"}:
        raise refuse(
            f"{key}.revision",
            model.revision,
            f"left out at first, then what is printed for {folder}",
        )
    if not _is_described(model):
        shape = shape_of(key, folder)
        eos = stop_ids(key, folder) if model.eos == -1 else model.eos
        given: dict[str, int] = {}
        for name in CONFIG_KEYS:
            if size := getattr(model.shape, name):
                given[name] = size
        # `tied` defaults to true, so it counts as given only if all other sizes are given, or if it
        # is false.
        if len(given) == len(CONFIG_KEYS) or not model.shape.tied:
            shape = replace(shape, tied=model.shape.tied)
        model = replace(model, shape=replace(shape, **given), eos=eos)
    elif not model.shape.parameters:
        counted = shape_of(key, folder).parameters
        model = replace(model, shape=replace(model.shape, parameters=counted))
    return replace(model, path=str(folder.resolve()))


def _check_not_meant_as_folder(key: str, model: Model) -> None:
    """Raise UserError if a path without a folder can only be meant as a folder.

    A hub id with its commit, sizes and stop id is complete. Without a commit it cannot be loaded,
    and a path below a folder that exists is more likely a typing mistake than a hub id.
    """
    if model.path is None or model.recipe is not None:
        return
    parent = Path(model.path).expanduser().parent
    looks_local = model.path.startswith((".", "/", "~")) or (parent != Path() and parent.is_dir())
    is_complete = _is_described(model) and model.revision
    if not is_complete and (looks_local or model.revision is None):
        raise _no_folder(key, model.path)


def _is_described(model: Model) -> bool:
    """Whether a setup gives all sizes of a model and its stop id."""
    return all(getattr(model.shape, name) for name in CONFIG_KEYS) and model.eos != -1


def _no_folder(key: str, path: str) -> UserError:
    """The error of a model's `path` that is no folder, with the nearest folder beside it."""
    folder = Path(path).expanduser()
    beside: list[str] = []
    if folder.parent.is_dir() and os.access(folder.parent, os.R_OK):
        for other in folder.parent.iterdir():
            if other.is_dir():
                beside.append(path[: -len(folder.name)] + other.name)
    expected = "a model folder"
    if not folder.is_absolute():
        expected += f" in {Path.cwd()}"
    if not path.startswith((".", "/", "~")):
        expected += ", or a hub id with its revision: COMMIT, shape and eos"
    expected += did_you_mean(path, beside)
    # A copied runs folder has results and no models: its user wants a table and not a sweep.
    for results in sorted(default_runs().glob("results/*/experiment.yaml"))[:1]:
        expected += f"; trb table {results.parent} shows finished runs"
    return refuse(f"{key}.path", path, expected)


def _vocabulary(name: str, setup: Setup) -> Vocabulary:
    """The setup's vocabulary; missing values are those of local folders.

    The ids are those of the teacher, whose tokenizer is used, as far as both models have them.
    """
    vocabulary = setup.vocabulary
    if vocabulary.size and vocabulary.valid:
        return vocabulary
    local = (local_folder(setup.teacher), local_folder(setup.student))
    folders = [folder for folder in local if folder is not None]
    if not folders:
        return vocabulary
    # Tables of models that share a tokenizer may be padded to different sizes.
    size = vocabulary.size or min(embedding_rows(name, folder) for folder in folders)
    tokens = vocabulary.valid or 1 + max(token_ids(name, folders[0]).values())
    return Vocabulary(size, vocabulary.valid or min(size, tokens))
