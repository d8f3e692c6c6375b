"""Loads experiment files as an `Experiment`: reads, merges, completes and checks them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator import config
from orchestrator.engines.memory import needs_gpu
from orchestrator.errors import UserError, refuse
from orchestrator.experiment import local_files, placements, strict, validate
from orchestrator.experiment.grids import (
    parse_methods,
    with_confirmed_keys,
    with_method_keys,
    without_own_seeds,
)
from orchestrator.experiment.origins import SHARED_PARTS, with_origin
from orchestrator.experiment.reading import from_here, merge, read_overrides, read_yaml
from orchestrator.experiment.resolved import without_digests
from orchestrator.experiment.shipped import known_setups, setup_path


def load_experiment(path: str | Path, overrides: Sequence[str] = ()) -> config.Experiment:
    """Load the experiment in `path` with OmegaConf dotlist `overrides` applied.

    An override `seeds=…` holds for all methods, also for methods with seeds of their own in the
    file. Raises UserError naming the key, its value and the right form.
    """
    path = Path(path)
    try:
        experiment = _read_experiment(path, overrides)
        validate.check_experiment(experiment)
    except UserError as error:
        raise with_origin(error, path, overrides) from None
    return experiment


def load_setup(
    name: str, beside: Path | None = None, overrides: Sequence[str] = ()
) -> config.Setup:
    """Load one setup by name, with dotlist overrides of its own keys; UserError if it is invalid.

    A name that ends in .yaml is the path of a setup file.
    """
    path = Path(name) if name.endswith(".yaml") else setup_path(name, beside)
    setup = _build_setup(merge(_checked_setup(path), read_overrides(overrides)))
    setup, _ = local_files.completed(path.stem, setup, data_dir=None)
    validate.check_setup(path.stem, setup)
    return setup


def data_folder(given: str | None) -> str:
    """The folder of the data files: the given one, else TRB_DATA_DIR's, else `data`."""
    return given or os.environ.get("TRB_DATA_DIR") or "data"


def _read_experiment(path: Path, overrides: Sequence[str]) -> config.Experiment:
    """Read, merge, convert and complete an experiment; rules between its keys are not checked."""
    raw, inline = _merged(path, overrides)
    file: config.ExperimentFile = strict.build(config.ExperimentFile, raw)
    setups, notes = _setups_of(file, inline, path)
    large = any(needs_gpu(setup) for setup in setups.values())
    placement = placements.complete(
        file.runtime.placement, _placement_in(raw), otherwise=1 if large else 0
    )
    asked = parse_methods(file.methods, placement)
    return config.Experiment(
        name=file.name,
        setups=setups,
        methods=asked.grids,
        placements=asked.placements,
        seeds=file.seeds,
        method_seeds=asked.seeds,
        confirm=with_confirmed_keys(file.confirm),
        data_dir=file.data_dir,
        runtime=replace(file.runtime, placement=placement),
        notes=tuple(dict.fromkeys(notes)),
    )


def _merged(path: Path, overrides: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values of a file under its overrides, and the setups that are written in it."""
    written = _canonical(without_digests(read_yaml(path)))
    overridden = _canonical(read_overrides(overrides))
    if "seeds" in overridden and isinstance(written.get("methods"), dict):
        written["methods"] = without_own_seeds(written["methods"])
    # `role_gpus` in an override replace the file's total of GPUs, which a plain merge would keep.
    kept = placements.below(_placement_in(written), _placement_in(overridden))
    if kept != _placement_in(written):
        written["runtime"] = written["runtime"] | {"placement": kept}
    raw: dict[str, Any] = {"name": path.stem} | merge(written, overridden)
    if raw.get("confirm", {}) is None:  # `confirm=null` takes the confirming runs of a file away
        del raw["confirm"]
    # An override may choose some of the file's own setups by name: `setups` is then a list.
    inline = _setups_in(raw) or _setups_in(written)
    if isinstance(raw.get("setups"), dict):
        raw["setups"] = list(inline)
    return raw, inline


def _setups_of(
    file: config.ExperimentFile, inline: dict[str, Any], path: Path
) -> tuple[dict[str, config.Setup], list[str]]:
    """The setups of an experiment with its differences, and notes on what local files completed."""
    if not file.setups:
        raise refuse("setups", file.setups, f"at least one of {', '.join(known_setups(path))}")
    if len(set(file.setups)) != len(file.setups):
        raise refuse("setups", file.setups, "every setup once")
    setups: dict[str, config.Setup] = {}
    notes: list[str] = []
    differences = {part: getattr(file, part) for part in SHARED_PARTS}
    for name in file.setups:
        own = inline[name] if name in inline else _checked_setup(setup_path(name, path))
        setup = _build_setup(merge(own, differences))
        setups[name], noted = local_files.completed(name, setup, data_folder(file.data_dir))
        notes += noted
    return setups, notes


def _checked_setup(path: Path) -> dict[str, Any]:
    """Read a setup file as written; UserError names the file if a key or a type is wrong."""
    raw = read_yaml(path)
    try:
        _build_setup(raw)
    except UserError as error:
        hint = ""
        if (error.key or "").endswith(".revision"):
            hint = "; leave it out at first for a model in a local folder"
        raise UserError(f"{from_here(path)}: {error}{hint}", error.key) from None
    return raw


def _build_setup(raw: Any) -> config.Setup:
    if isinstance(raw, dict):
        raw = _without_null_benchmarks(raw)
    return strict.build(config.Setup, raw)


def _without_null_benchmarks(setup: dict[str, Any]) -> dict[str, Any]:
    """The values of a setup without the benchmarks that are set to null."""
    evaluation = setup.get("evaluation")
    if not isinstance(evaluation, dict) or not isinstance(evaluation.get("benchmarks"), dict):
        return setup  # it has none, or `strict.build` refuses their type
    benchmarks = {key: run for key, run in evaluation["benchmarks"].items() if run is not None}
    return setup | {"evaluation": evaluation | {"benchmarks": benchmarks}}


def _setups_in(values: dict[str, Any]) -> dict[str, Any]:
    """Setups written in the experiment file itself, by name; UserError if one breaks a rule."""
    setups = values.get("setups")
    if not isinstance(setups, dict):
        return {}
    for name, setup in setups.items():
        try:
            _build_setup(setup)
        except UserError as error:
            raise UserError(f"setups.{name}: {error}", error.key) from None
    return setups


def _placement_in(values: dict[str, Any]) -> dict[str, Any]:
    """The `runtime.placement` of plain values; empty if they have none or it is no mapping."""
    runtime = values.get("runtime")
    placement = runtime.get("placement") if isinstance(runtime, dict) else None
    return placement if isinstance(placement, dict) else {}


def _canonical(values: dict[str, Any]) -> dict[str, Any]:
    """`values` with methods under their keys, and the placement as a mapping."""
    values = with_method_keys(values)
    runtime = values.get("runtime")
    if isinstance(runtime, dict) and "placement" in runtime:
        placement = placements.in_full(runtime["placement"])
        return values | {"runtime": runtime | {"placement": placement}}
    return values
