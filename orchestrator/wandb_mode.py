"""What W&B should show of a unit, and whether it already does: everything about the mirror that needs no wandb."""

from __future__ import annotations

import configparser
import csv
import json
import netrc
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from orchestrator import grid, selection
from orchestrator.config import Experiment, Setup
from orchestrator.grid import Unit
from orchestrator.rundir import RunReader

# The cloud's addresses; an account of one is an account of the other.
CLOUD = ("https://api.forge.coreweave.com", "https://api.wandb.ai")
PHASES = ("rollout", "score", "reward", "learn")  # of a training step, as `timing.jsonl` has them

Table = tuple[list[Any], list[Any]]  # headings; rows, each a list


def chosen_mode(wish: str) -> str:
    """`online`, `offline` or `disabled`; the wish `auto` is online only when the user is logged in."""
    if wish != "auto":
        return wish
    match os.environ.get("WANDB_MODE"):
        case "online" | "offline" as forced:
            return forced
        case "dryrun":
            return "offline"
        case "disabled":
            return "disabled"
    return "online" if logged_in() else "offline"


def logged_in() -> bool:
    """Whether W&B's client finds a key: in the environment, or where `wandb login` leaves it."""
    named = os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE")
    return bool(named) or _in_netrc()


def server_url() -> str:
    """The server W&B's client talks to: `WANDB_BASE_URL`, what `wandb login --host` noted, or the cloud."""
    folder = os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb"
    noted = configparser.ConfigParser(default_section="default", interpolation=None)
    try:
        noted.read(Path(folder).expanduser() / "settings")
    except configparser.Error:
        noted.clear()
    return (os.environ.get("WANDB_BASE_URL") or noted.defaults().get("base_url") or CLOUD[0]).rstrip("/")


def stale_units(experiment: Experiment, units: list[Unit], runs: Path, mode: str) -> list[Unit]:
    """Units whose projection is not what W&B was last given."""
    return [u for u in units if not _is_current(u, experiment.setups[u.setup], runs, mode)]


def projected_rows(unit: Unit, setup: Setup, run: RunReader) -> dict[int, dict[str, Any]]:
    """W&B rows by step: committed metrics of update k, its seconds, and scores of the checkpoint after k updates.

    A row is final once training went past its step; until then a later score could still belong to it.
    """
    rows: dict[int, dict[str, Any]] = {}
    for metrics in run.committed_metrics():
        named = {f"train/{key}": value for key, value in metrics.items() if key != "step" and value is not None}
        rows.setdefault(metrics["step"], {}).update(named)
    for step, seconds in _seconds(run).items():
        if step in rows:
            rows[step].update(seconds)
    ids = grid.evaluation_ids(setup)
    for step in sorted({s for evaluation_id in ids.values() for s in run.evaluated_steps(evaluation_id)}):
        scores = selection.benchmark_scores(run, list(ids.values()), step)
        row = {f"eval/{key}": float(score) for key, score in zip(ids, scores, strict=True) if score is not None}
        mean = selection.exact_mean(scores)
        rows.setdefault(step, {}).update(row | ({"eval/mean": float(mean)} if mean is not None else {}))
    return {step: rows[step] for step in sorted(rows) if run.trained or step < run.next_step}


def mirror_folder(runs: Path) -> Path:
    """Where offline runs and the markers lie."""
    return runs / ".wandb"


def remember(run_id: str, content: Any, runs: Path, mode: str) -> None:
    """Note what W&B was given of a run; `content` is anything JSON holds."""
    marker = _marker(run_id, runs)
    scratch = marker.with_name(f"{marker.name}.tmp")
    scratch.write_text(json.dumps(_state(content, mode)))
    os.replace(scratch, marker)


def was_given(run_id: str, content: Any, runs: Path, mode: str) -> bool:
    """Whether W&B has exactly `content` of a run."""
    try:
        return json.loads(_marker(run_id, runs).read_text()) == _state(content, mode)
    except (FileNotFoundError, ValueError):  # absent or torn
        return False


# --- the results of an experiment ---


def results_id(experiment: Experiment) -> str:
    """W&B id of the run that holds an experiment's results; the same name is the same run."""
    return f"results-{experiment.name}"


def result_tables(document: dict[str, Any], scores: str) -> dict[str, Table]:
    """The results table twice, from its JSON and CSV forms: `results` as printed, `scores` a row for each cell.

    Empty where nothing has a score yet.
    """
    if all(cell["value"] is None for row in document["rows"] for cell in row["cells"]):
        return {}
    several = len({column["setup"] for column in document["columns"]}) > 1
    headings = [f"{c['setup']} {c['label']}" if several else c["label"] for c in document["columns"]]
    rows = [[row["label"], *(cell["value"] for cell in row["cells"])] for row in document["rows"]]
    names, *cells = csv.reader(scores.splitlines())
    columns = [_numbers(list(column)) for column in zip(*cells, strict=True)]
    scored = [list(row) for row in zip(*columns, strict=True)]
    return {"results": (["Method", *headings], rows), "scores": (names, scored)}


def _numbers(texts: list[str]) -> list[Any]:
    """A column of numbers where all its cells are some or empty, else of texts; empty cells are missing."""
    try:
        return [float(text) if text else None for text in texts]
    except ValueError:
        return [text or None for text in texts]


# --- private ---


def _is_current(unit: Unit, setup: Setup, runs: Path, mode: str) -> bool:
    rows = projected_rows(unit, setup, RunReader(runs, unit.id))
    return not rows or was_given(unit.id, list(rows.items()), runs, mode)


def _seconds(run: RunReader) -> dict[int, dict[str, float]]:
    """Seconds of each phase by step; of a step taken again after a kill, the last time."""
    seconds = {}
    for row in run.timing():
        if row["phase"] == "train":
            seconds[row["step"]] = {f"time/{phase}": row[phase] for phase in PHASES if phase in row}
    return seconds


def _marker(run_id: str, runs: Path) -> Path:
    return mirror_folder(runs) / f"{run_id}.json"


def _state(content: Any, mode: str) -> dict[str, str]:
    server = {"server": server_url()} if mode == "online" else {}
    return {"mode": mode, **server, "rows": grid.digest(content)}


def _in_netrc() -> bool:
    url = server_url()
    hosts = {urlsplit(name).netloc for name in (CLOUD if url in CLOUD else (url,))}
    try:
        found = netrc.netrc(os.environ.get("NETRC") or None).hosts
    except (OSError, netrc.NetrcParseError):
        return False
    return bool(hosts & set(found))
