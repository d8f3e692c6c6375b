"""Bytes of run directories and the documents of `--json` are promises: moving code about changes
none of them.

`golden_bytes.json` holds them over made-up runs, which are the same on every machine: a sha256 of
each kind of file in a run directory, of the table in its forms, and of each document, whose keys it
lists. Sentences, such as the notes and the verdict below a table, may be reworded. `python -m
tests.test_golden_bytes` writes it anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import main
from orchestrator.commands import plan
from tests import fake_runs
from tests.sweeps import contents

GOLDEN = Path(__file__).with_name("golden_bytes.json")
PROSE = {"advice", "caption", "notes", "verdict"}  # keys of a document whose values are sentences


def made_up(folder: Path) -> dict[str, Any]:
    """The pinned facts over runs that no model made."""
    experiment, units = fake_runs.quickstart("seeds=[0,1]")
    runs = folder / "runs"
    fake_runs.fake_models(experiment, runs)
    units = fake_runs.expand(experiment, runs)
    for position, unit in enumerate(units):
        scores = {}
        if unit.kind != "sft":
            for step in [0] if unit.kind == "base_eval" else [20, 40]:
                scores[step] = [position % 5, (position + step) % 5]
        fake_runs.write_run(runs, experiment, unit, scores, steps=unit.steps)
    of_kinds: dict[str, list[tuple[str, str]]] = {}
    for path, sha256 in contents(runs).items():
        of_kinds.setdefault(path.split("/")[1], []).append((path, sha256))
    overrides = ["evaluation.rescore=false", "seeds=[0,1]"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "cores_here", lambda: 2)  # by which the plan divides its minutes
        texts = outputs(folder, [str(fake_runs.QUICKSTART), *overrides])
    pinned: dict[str, Any] = {kind: digest(repr(files)) for kind, files in of_kinds.items()}
    pinned["table.csv"] = digest(texts.pop("table.csv"))
    for name, separator in {"table.md": "|", "compare.md": "|", "table.tex": "&"}.items():
        lines = texts.pop(name).splitlines()
        pinned[name] = digest("\n".join(line for line in lines if separator in line))
    for name, text in texts.items():
        document = json.loads(text)
        for key in PROSE & document.keys():
            document[key] = None
        values = json.dumps(document, sort_keys=True)
        pinned[name] = {"sha256": digest(values), "keys": sorted(set(keys_of(document)))}
    return pinned


def outputs(folder: Path, experiment: list[str]) -> dict[str, str]:
    """Name → text that a command prints about the runs in `folder`, given by a relative path."""
    table, compare = ["table", *experiment, "--format"], ["--compare", "TRB,Vanilla"]
    commands = {
        **{f"table.{form}": [*table, form] for form in ("csv", "md", "tex", "json")},
        **{f"compare.{form}": [*table, form, *compare] for form in ("md", "json")},
        "status.json": ["status", *experiment, "--json"],
        "plan.json": ["plan", *experiment, "--json"],
    }
    texts = {}
    for name, command in commands.items():
        shown = io.StringIO()
        with (
            contextlib.chdir(folder),
            contextlib.redirect_stdout(shown),
            pytest.raises(SystemExit) as ended,
        ):
            main([*command, "--runs", "runs"])
        assert ended.value.code == 0, command
        texts[name] = shown.getvalue().replace(str(folder), "FOLDER")
    return texts


def keys_of(value: Any, path: str = "") -> Iterator[str]:
    """`units[].done.steps` for each value of a document."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from keys_of(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for inner in value:
            yield from keys_of(inner, f"{path}[]")
    else:
        yield path


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_outputs_over_made_up_runs_are_pinned(tmp_path: Path) -> None:
    golden, found = json.loads(GOLDEN.read_text(encoding="utf-8")), made_up(tmp_path)
    assert found.keys() == golden.keys()
    for name, pinned in golden.items():
        assert found[name] == pinned, f"{name}: see the docstring of this file"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        text = json.dumps(made_up(Path(scratch)), indent=1)
    GOLDEN.write_text(f"{text}\n", encoding="utf-8")
