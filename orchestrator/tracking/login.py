"""Finds W&B's mode, server and login, and notes which content of each run was sent."""

from __future__ import annotations

import configparser
import json
import math
import netrc
import os
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from orchestrator.experiment import units
from orchestrator.experiment.reading import from_here
from orchestrator.records.files import write_atomically

# This module reads wandb's two files itself. `wandb.login(prompt=False)` sends a key that it finds
# to the server, and fails if the server does not answer; importing wandb takes 0.6 s of a
# processor. `trb submit` and `trb doctor` need the mode at their start, also without a network, and
# also if they send nothing.

# The cloud's two addresses, which share accounts.
CLOUD = ("https://api.forge.coreweave.com", "https://api.wandb.ai")
PROJECT_NOTE = "project.json"


def chosen_mode(configured: str) -> str:
    """`online`, `offline` or `disabled`; `auto`: WANDB_MODE, else online for a logged-in user."""
    if configured != "auto":
        return configured
    match os.environ.get("WANDB_MODE"):
        case "online" | "offline" as forced:
            return forced
        case "dryrun":
            return "offline"
        case "disabled":
            return "disabled"
    return "online" if logged_in() else "offline"


def logged_in() -> bool:
    """Whether W&B's client finds a key in the environment or in the file of `wandb login`."""
    named = os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE")
    return bool(named) or _in_netrc()


def server_url() -> str:
    """The server of W&B's client: `WANDB_BASE_URL`, that of `wandb login --host`, or the cloud."""
    folder = os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb"
    noted = configparser.ConfigParser(default_section="default", interpolation=None)
    try:
        noted.read(Path(folder).expanduser() / "settings")
    except configparser.Error:
        noted.clear()
    return (
        os.environ.get("WANDB_BASE_URL") or noted.defaults().get("base_url") or CLOUD[0]
    ).rstrip("/")


def mirror_folder(runs: Path) -> Path:
    """Folder of the offline runs and the markers."""
    return runs / ".wandb"


@dataclass(frozen=True)
class Destination:
    """The place that runs are sent to: a project in the folder of offline runs, or on a server.

    A run goes to each destination once. So a renamed project gets all runs, and two experiments
    that share units and have projects of their own do not send them in turns for ever.
    """

    runs: Path
    mode: str
    project: str

    @property
    def place(self) -> dict[str, str]:
        """Its name: without WANDB_ENTITY the server takes the entity of the login."""
        server = {"server": server_url()} if self.mode == "online" else {}
        entity = os.environ.get("WANDB_ENTITY", "")
        return {"mode": self.mode, **server, "entity": entity, "project": self.project}

    def marker(self, run_id: str) -> Path:
        """The note of a run. The folder holds one offline run of each unit, whatever its project."""
        name = f"{run_id}-{units.digest(self.place)}" if self.mode == "online" else run_id
        return mirror_folder(self.runs) / f"{name}.json"


def remember(run_id: str, content: Any, to: Destination) -> None:
    """Note that W&B was given this `content` of a run, which is any value that JSON can hold."""
    write_atomically(to.marker(run_id), json.dumps(_state(content, to)), durable=False)


def was_given(run_id: str, content: Any, to: Destination, within_s: float = math.inf) -> bool:
    """Whether W&B was given exactly `content` of a run, in the last `within_s` seconds."""
    marker = to.marker(run_id)
    try:
        known = json.loads(marker.read_text()) == _state(content, to)
        return known and time.time() - marker.stat().st_mtime < within_s
    except (FileNotFoundError, ValueError):  # absent or torn
        return False


# --- pages and commands that show runs ---


def note_project(project: str, url: str, runs: Path) -> None:
    """Remember the page of a project on the present server."""
    folder = mirror_folder(runs)
    folder.mkdir(parents=True, exist_ok=True)
    note = Destination(runs, "online", project).place | {"url": url}
    write_atomically(folder / PROJECT_NOTE, json.dumps(note), durable=False)


def noted_project(project: str, runs: Path) -> str | None:
    """The page of a project that `note_project` noted for the present server, if any."""
    try:
        note = json.loads((mirror_folder(runs) / PROJECT_NOTE).read_text())
    except (FileNotFoundError, ValueError):
        return None
    url = note.pop("url")
    return url if note == Destination(runs, "online", project).place else None


def leet_command(runs: Path) -> str:
    """The command that shows offline runs in the terminal."""
    return f"{_program()} leet {shlex.quote(from_here(mirror_folder(runs) / 'wandb'))}"


def sync_command(runs: Path) -> str:
    """The command that sends offline runs to the server; the star is for the shell."""
    return (
        f"{_program()} sync {shlex.quote(from_here(mirror_folder(runs) / 'wandb'))}/offline-run-*"
    )


# --- private ---


def _program() -> str:
    """W&B's command: the one of this Python's environment if it has one."""
    beside = Path(sys.executable).with_name("wandb")
    return shlex.quote(from_here(beside)) if beside.exists() else "wandb"


def _state(content: Any, to: Destination) -> dict[str, str]:
    """The note of a run: where its content went, and a digest of it."""
    return to.place | {"rows": units.digest(content)}


def _in_netrc() -> bool:
    """Whether `wandb login` left a key of the present server in the user's netrc file."""
    url = server_url()
    hosts = {urlsplit(name).netloc for name in (CLOUD if url in CLOUD else (url,))}
    try:
        with_password = netrc.netrc(os.environ.get("NETRC") or None).hosts
    except (OSError, netrc.NetrcParseError):
        return False
    return not hosts.isdisjoint(with_password)
