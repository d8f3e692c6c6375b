"""Prepares a sweep: sets Ray's variables, fetches data and makes missing models, in parallel."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

from orchestrator.config import Experiment, Setup
from orchestrator.data.benchmarks import lacking
from orchestrator.data.sources import SOURCES, fetch
from orchestrator.engines.interface import ModelFolder
from orchestrator.experiment.methods import supervised_updates
from orchestrator.experiment.units import Unit, setup_of
from orchestrator.models.locate import (
    check_passes,
    check_same_tokens,
    check_trained_from,
    checkpoint_of,
)
from orchestrator.models.make import Reporter, make, must_make
from orchestrator.records.rundir import RunReader
from orchestrator.workers.spec import Pairs, WorkerSpec

# --- variables that Ray and Tune read when they are imported: set before the first import ---


QUIET = {
    "RAY_AIR_NEW_OUTPUT": "0",  # no reporter of Tune's own
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C reaches the command, which says how to go on
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",  # a process that asked for no GPU sees none
    # Ray ends the process of a driver that has lost its server for this long. The sweep notices
    # within seconds, and then needs the time to show and write its results.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "3600",
}
# Ray's switch for machines that are never part of a cluster: all its servers bind to 127.0.0.1. Ray
# then keeps that address; at the machine's external address a server on loopback would not answer.
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
PRIVATE = LOOPBACK | {
    # Prestarted workers serve tasks; a sweep has only actors, which get processes of their own.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
}


def prepare_environment(address: str | None) -> None:
    """Set the variables for the cluster at `address`, or (None) for a private cluster."""
    if address is None:
        # Only this driver and the processes it starts know this token: Ray refuses other users of
        # the machine, and writes no token into the home folder.
        more = PRIVATE | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    else:
        more = LOOPBACK if _is_loopback(address) else {}
    for name, value in (QUIET | more).items():
        os.environ.setdefault(name, value)


def _is_loopback(address: str) -> bool:
    return address.rpartition(":")[0] in ("127.0.0.1", "localhost")


# --- data and models ---


def fetch_data(experiment: Experiment, say: Callable[[str], None]) -> None:
    """Fetch the declared data files that the data folder lacks and `data.sources` knows.

    `say` gets a line for each. Never replaces a file of the user. Raises UserError if a file cannot
    be fetched.
    """
    if experiment.data_dir is None:
        return
    folder = Path(experiment.data_dir)
    absent = lacking(experiment.setups.values(), folder)
    keys = [key for key, source in SOURCES.items() if absent.get(source.file) == source.sha256]
    for line in fetch(folder, keys):
        say(line)


def check_passes_of(name: str, role: str, setup: Setup, checkpoint: ModelFolder) -> None:
    """Check the passes of any model but those of the embedded world, which tests compare."""
    recipe = getattr(setup, role).recipe
    if recipe is None or not recipe.is_embedded:
        check_passes(f"{name}.{role}", Path(checkpoint.path), setup.context)


def prepare(
    setups: Mapping[str, Setup], runs: Path, report: Reporter, data_dir: str | None = None
) -> Pairs:
    """Make missing models; return student and teacher of each setup.

    `report` gets a role and its progress, see `make.make`.
    """
    pairs: dict[str, tuple[ModelFolder, ModelFolder]] = {}
    for name, setup in setups.items():
        missing: list[str] = []
        for role in ("student", "teacher"):
            if must_make(getattr(setup, role), setup, runs):
                missing.append(role)
        make(setup, missing, runs, report, data_dir)
        check_trained_from(setup, runs)
        pairs[name] = (
            checkpoint_of(setup.student, setup, runs),
            checkpoint_of(setup.teacher, setup, runs),
        )
        if missing:  # then `check_models` had no pair to compare
            check_same_tokens(name, *pairs[name])
        for role in missing:
            check_passes_of(name, role, setup, checkpoint_of(getattr(setup, role), setup, runs))
    return pairs


def worker_spec(
    unit: Unit,
    experiment: Experiment,
    runs: Path,
    pair: tuple[ModelFolder, ModelFolder],
) -> WorkerSpec:
    """Spec of a unit's roles; a trial after supervised updates starts from its stage's checkpoint."""
    student, teacher = pair
    initial = student
    updates = supervised_updates(unit.method, unit.knobs)
    if updates is not None:
        stage = RunReader(runs, unit.depends_on[0])
        initial = ModelFolder(
            str(stage.checkpoint_path(updates)), stage.checkpoint_files(updates), stage.remedy
        )
    setup = setup_of(unit, experiment)
    return WorkerSpec(
        unit, setup, experiment.runtime, student, teacher, initial, experiment.data_dir
    )
