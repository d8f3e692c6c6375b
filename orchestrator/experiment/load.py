"""Experiment files → `Experiment`: strict keys, types and ranges; instant, without torch or ray."""

from __future__ import annotations

import dataclasses
import io
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from orchestrator import config
from orchestrator.engines.memory import needs_gpu
from orchestrator.errors import LONGEST_VALUE, UserError, did_you_mean, refuse, shortened
from orchestrator.experiment import local_models, shipped, strict, validate, yaml_limits
from orchestrator.experiment.grids import parse_methods, without_own_seeds

OVERRIDE = "override"
DEEPEST_KEY = 12  # parts of a dotted key
SHARED_PARTS = ("engine", "training", "evaluation", "probe")  # an experiment's differences to each of its setups


def load_experiment(path: str | Path, overrides: Sequence[str] = ()) -> config.Experiment:
    """The experiment in `path` with OmegaConf dotlist `overrides` applied.

    An override `seeds=…` holds for all methods, also for those to which the file gives seeds of their own.
    Raises UserError naming the key, its value and what would be right.
    """
    path = Path(path)
    try:
        experiment = _read_experiment(path, overrides)
        validate.check_experiment(experiment)
    except UserError as error:
        raise _with_origin(error, path, overrides) from None
    return experiment


def _read_experiment(path: Path, overrides: Sequence[str]) -> config.Experiment:
    written, over = (_with_placement_as_mapping(values) for values in (_read_yaml(path), _dotlist(overrides)))
    if "seeds" in over and isinstance(written.get("methods"), dict):
        written["methods"] = without_own_seeds(written["methods"])
    raw: dict[str, Any] = {"name": path.stem} | _merge(written, over)
    file: config.ExperimentFile = strict.build(config.ExperimentFile, raw)
    if not file.setups:
        raise refuse("setups", file.setups, f"at least one of {', '.join(known_setups(path))}")
    if len(set(file.setups)) != len(file.setups):
        raise refuse("setups", file.setups, "every setup once")
    read = {name: _setup_in_experiment(name, path, file) for name in file.setups}
    runtime = file.runtime
    if "gpus" not in raw.get("runtime", {}).get("placement", {}) and any(
        needs_gpu(setup) for setup, _ in read.values()
    ):
        runtime = dataclasses.replace(runtime, placement=dataclasses.replace(runtime.placement, gpus=1))
    asked = parse_methods(file.methods, runtime.placement)
    strict.check(file)
    return config.Experiment(
        name=file.name,
        setups={name: setup for name, (setup, _) in read.items()},
        methods=asked.grids,
        placements=asked.placements,
        seeds=file.seeds,
        method_seeds=asked.seeds,
        data_dir=file.data_dir,
        runtime=runtime,
        notes=tuple(dict.fromkeys(note for _, notes in read.values() for note in notes)),
        arguments=(str(path), *overrides),
    )


def load_setup(name: str, beside: Path | None = None, overrides: Sequence[str] = ()) -> config.Setup:
    """One setup by name, with dotlist overrides of its own keys; UserError if it is unknown or invalid.

    A name that ends in .yaml is the path of a setup file.
    """
    path = Path(name) if name.endswith(".yaml") else _setup_path(name, beside)
    setup = _build_setup(_merge(_checked_setup(path), _dotlist(overrides)))
    setup, _ = local_models.completed(path.stem, setup)
    validate.check_setup(path.stem, setup)
    return setup


def data_folder(given: str | None) -> str | None:
    """The folder of the data files: the one that was given, else that of TRB_DATA_DIR, else None."""
    return given or os.environ.get("TRB_DATA_DIR") or None


@dataclass(frozen=True)
class Layer:
    """Values as one place gives them, and the name of that place."""

    origin: str
    values: dict[str, Any]


def layers(path: Path, overrides: Sequence[str]) -> tuple[list[Layer], dict[str, Layer]]:
    """Where the values of an experiment come from, the last word first: overrides, its file; and its setups' files."""
    own, dotlist = _read_yaml(path), _dotlist(overrides)
    names = _merge(own, dotlist).get("setups", [])
    setups = {}
    for name in names if isinstance(names, list) else []:
        if isinstance(name, str):
            file = _setup_path(name, path)
            setups[name] = Layer(_from_here(file), _read_yaml(file))
    return [Layer(OVERRIDE, dotlist), Layer(str(path), own)], setups


def origin(key: Sequence[str], above: Sequence[Layer]) -> str:
    """Where the value of a key comes from: the first of the layers that says something of it, or `default`."""
    return next((layer.origin for layer in above if _says(layer.values, key)), "default")


def _says(values: Any, key: Sequence[str]) -> bool:
    for part in key:
        if not isinstance(values, dict):
            return True  # a list or a scalar stands for all that is below it
        if part not in values:
            return False
        values = values[part]
    return True


def _with_origin(error: UserError, path: Path, overrides: Sequence[str]) -> UserError:
    """The error with the file that its key's value stands in, or should; what was typed just now needs no place."""
    if error.key is None or not str(error).startswith(error.key):
        return error
    try:
        own, setups = layers(path, overrides)
    except UserError:  # the error is about one of these files
        return error
    key = re.sub(r"\[\d+\]| .*", "", error.key)
    for name, layer in setups.items():
        parts = key.removeprefix(f"{name}.").split(".")
        above = [*own, layer] if parts[0] in SHARED_PARTS else [layer]
        place = origin(parts, above if parts[0] in config.Setup.__dataclass_fields__ else own)
        if key.startswith(f"{name}.") and place == "default":
            place = layer.origin
        if place not in ("default", OVERRIDE):
            return UserError(f"{error} ({place})", error.key)
    return error


def _from_here(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def known_setups(beside: Path | None = None) -> list[str]:
    """Names of the setups that can be used: those beside the experiment file, and those that are shipped."""
    return sorted({p.stem for folder in _setup_folders(beside) for p in folder.glob("*.yaml")})


def _setup_folders(beside: Path | None) -> list[Path]:
    own = [beside.resolve().parent / "setups"] if beside else []
    return [*own, shipped.SETUPS]


def _setup_path(name: str, beside: Path | None) -> Path:
    validate.check_name("setups", name)
    for folder in _setup_folders(beside):
        if (folder / f"{name}.yaml").is_file():
            return folder / f"{name}.yaml"
    known = known_setups(beside)
    raise refuse("setups", name, f"one of {', '.join(known)}{did_you_mean(name, known)}")


def _setup_in_experiment(name: str, experiment: Path, file: config.ExperimentFile) -> tuple[config.Setup, list[str]]:
    """A setup with the experiment's differences and what its local files say, and the notes on them."""
    differences = {part: getattr(file, part) for part in SHARED_PARTS}
    setup = _build_setup(_merge(_checked_setup(_setup_path(name, experiment)), differences))
    return local_models.completed(name, setup)


def _checked_setup(path: Path) -> dict[str, Any]:
    """A setup file as written; UserError that names the file where a key or a type is wrong."""
    raw = _read_yaml(path)
    try:
        _build_setup(raw)
    except UserError as error:
        revision = "; of a local folder leave it out at first" if (error.key or "").endswith(".revision") else ""
        raise UserError(f"{_from_here(path)}: {error}{revision}", error.key) from None
    return raw


def _build_setup(raw: dict[str, Any]) -> config.Setup:
    return strict.build(config.Setup, _without_null_benchmarks(raw))


def _without_null_benchmarks(setup: dict[str, Any]) -> dict[str, Any]:
    """The values of a setup without the benchmarks that are set to null, which leaves them out."""
    evaluation = setup.get("evaluation")
    if not isinstance(evaluation, dict) or not isinstance(evaluation.get("benchmarks"), dict):
        return setup  # there are none, or `strict.build` refuses their type
    benchmarks = {key: run for key, run in evaluation["benchmarks"].items() if run is not None}
    return setup | {"evaluation": evaluation | {"benchmarks": benchmarks}}


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(yaml_limits.LONGEST + 1)
        yaml_limits.check_limits(text)
        raw = OmegaConf.to_container(OmegaConf.load(io.StringIO(text)), resolve=True)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (IsADirectoryError, UnicodeDecodeError, PermissionError):
        raise UserError(f"{path}: not a readable YAML file") from None
    except yaml_limits.YamlTooLarge as error:
        raise UserError(f"{path}: {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        problem = " ".join(str(getattr(error, "problem", None) or "syntax").split())
        raise UserError(f"{path}{where}: not valid YAML ({problem})") from None
    except (OmegaConfBaseException, OSError, ValueError) as error:  # ValueError: a number of thousands of digits
        raise UserError(f"{path}: {_first_line(error)}") from None
    if not isinstance(raw, dict):
        raise UserError(f"{path}: {type(raw).__name__} — a mapping of keys to values")
    return cast(dict[str, Any], raw)


def _dotlist(overrides: Sequence[str]) -> dict[str, Any]:
    _check_overrides(overrides)
    try:
        return cast(dict[str, Any], OmegaConf.to_container(OmegaConf.from_dotlist(list(overrides)), resolve=True))
    except (OmegaConfBaseException, yaml.YAMLError, ValueError) as error:
        raise refuse("override", " ".join(overrides), _first_line(error)) from None


def _check_overrides(overrides: Sequence[str]) -> None:
    """UserError on what is no override, on one that is too much to read, and on a key that is given twice."""
    given: set[str] = set()
    for item in overrides:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise refuse("override", item, "key=value, for example training.steps=20")
        if key in given:
            raise UserError(f"{shortened(key, LONGEST_VALUE)}: given twice — every override once")
        given.add(key)
        if key.count(".") + key.count("[") > DEEPEST_KEY:
            raise refuse("override", item, f"a key of at most {DEEPEST_KEY} parts")
        try:
            yaml_limits.check_limits(value)
        except yaml_limits.YamlTooLarge as error:
            raise refuse("override", item, str(error)) from None
        except yaml.YAMLError:
            pass  # reading them all says it


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _merge(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    """`top` over `base`; mappings merge, everything else (lists too) is replaced."""
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _with_placement_as_mapping(values: dict[str, Any]) -> dict[str, Any]:
    """`values` with `runtime.placement: split` written out as `runtime.placement: {mode: split}`."""
    runtime = values.get("runtime")
    if isinstance(runtime, dict) and isinstance(runtime.get("placement"), str):
        return values | {"runtime": runtime | {"placement": {"mode": runtime["placement"]}}}
    return values
