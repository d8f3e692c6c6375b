"""Writes the resolved experiment to its results folder, as an experiment file again.

It has two more keys: `digest` of setups, methods and seeds, and `runs` of the ids of its units and
evaluations. It contains its setups in full, so it gives the same numbers after its source files
have changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from orchestrator.config import Experiment
from orchestrator.experiment.grids import PLACEMENT_KEY, SEEDS_KEY

RECORD = "experiment.yaml"
RESULTS = "results"  # the folder in the runs folder that holds results folders
DIGESTS = ("digest", "runs")
HEAD = (
    "# The experiment that the files of this folder are of, with every value resolved: trb submit takes it as it is.\n"
    "# digest: of setups, methods and seeds; runs: of the ids of its units and evaluations.\n"
)


def resolved_text(experiment: Experiment, digests: Mapping[str, str]) -> str:
    """The text of `experiment.yaml`; `digests` has the values of DIGESTS."""
    methods: dict[str, dict[str, Any]] = {}
    for name, grid in experiment.methods.items():
        methods[name] = dict(grid)
        if name in experiment.placements:
            methods[name][PLACEMENT_KEY] = asdict(experiment.placements[name])
        if name in experiment.method_seeds:
            methods[name][SEEDS_KEY] = experiment.method_seeds[name]
    document: dict[str, Any] = {
        **digests,
        "name": experiment.name,
        "setups": {name: asdict(setup) for name, setup in experiment.setups.items()},
        "methods": methods,
        "seeds": experiment.seeds,
    }
    if experiment.confirm.seeds:
        document["confirm"] = asdict(experiment.confirm)
    document["data_dir"] = experiment.data_dir
    document["runtime"] = asdict(experiment.runtime)
    return HEAD + yaml.safe_dump(_plain(document), sort_keys=False, allow_unicode=True, width=120)


def without_digests(raw: dict[str, Any]) -> dict[str, Any]:
    """The keys of an experiment file, which may be a resolved one.

    It may name a data folder that this machine lacks. The key is then null, and TRB_DATA_DIR
    decides.
    """
    if "digest" not in raw:
        return raw
    values = {key: value for key, value in raw.items() if key not in DIGESTS}
    data = values.get("data_dir")
    return values | {"data_dir": data if isinstance(data, str) and Path(data).is_dir() else None}


def runs_of(path: Path) -> Path | None:
    """The runs folder of a resolved experiment, `RUNS/results/NAME/experiment.yaml`; else None."""
    above = path.absolute().parents
    return above[2] if path.name == RECORD and len(above) > 2 and above[1].name == RESULTS else None


def _plain(value: Any) -> Any:
    """Turn tuples into lists, the only sequence that YAML has."""
    if isinstance(value, dict):
        return {key: _plain(own) for key, own in value.items()}
    return [_plain(own) for own in value] if isinstance(value, list | tuple) else value
