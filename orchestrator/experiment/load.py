"""Loads experiment files: finds, reads, merges, completes and checks them.

A resolved experiment is written to its results folder as an experiment file again. That file has
two more keys: `digest` of setups, methods and seeds, and `runs` of the ids of its units and
evaluations. It contains its setups in full, so it gives the same numbers after its source files
have changed.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from orchestrator import config
from orchestrator.config import Confirm, Experiment, Placement, Search
from orchestrator.engines.memory import needs_gpu
from orchestrator.errors import UserError, did_you_mean, refuse, unknown
from orchestrator.experiment import local_files, validate
from orchestrator.experiment.axes import (
    AXES,
    axes_of,
    check_key,
    flat,
    own_knobs,
    parse,
    typed,
    values_of,
    written,
)
from orchestrator.experiment.methods import METHODS, Knob, method_key, method_label
from orchestrator.experiment.reading import (
    build,
    from_here,
    merge,
    places,
    read_overrides,
    read_yaml,
)
from orchestrator.experiment.search import POINTS, PointList, Space, asked, grid_of, lists
from orchestrator.models.locate import EXPERIMENTS
from orchestrator.rules import Name, PlacementMode, Seeds, entries, entry

SETUPS = EXPERIMENTS / "setups"
RECORD = "experiment.yaml"
RESULTS = "results"  # the folder in the runs folder that holds results folders
DIGESTS = ("digest", "runs")
HEAD = (
    "# The experiment that the files of this folder are of, with every value resolved: trb submit takes it as it is.\n"
    "# digest: of setups, methods and seeds; runs: of the ids of its units and evaluations.\n"
)
PLACEMENT_KEY = "placement"
SEEDS_KEY = "seeds"
# Keys that a method's block may hold beside its knobs.
RESERVED = (PLACEMENT_KEY, SEEDS_KEY, AXES, POINTS)
# Parts of a setup that an experiment may change, for all of its setups.
SHARED_PARTS = ("engine", "training", "evaluation", "probe")


def load_experiment(path: str | Path, overrides: Sequence[str] = ()) -> config.Experiment:
    """Load the experiment in `path` with OmegaConf dotlist `overrides` applied.

    An override `seeds=…` holds for all methods, also for methods with seeds of their own in the
    file. Raises UserError naming the key, its value and the right form.
    """
    path = Path(path)
    experiment = _read_experiment(path, overrides)
    validate.check_experiment(experiment)
    return experiment


def load_setup(
    name: str, beside: Path | None = None, overrides: Sequence[str] = ()
) -> config.Setup:
    """Load one setup by name, with dotlist overrides of its own keys; UserError if it is invalid.

    A name that ends in .yaml is the path of a setup file.
    """
    path = Path(name) if name.endswith(".yaml") else setup_path(name, beside)
    setup = build(config.Setup, merge(_checked_setup(path), read_overrides(overrides)))
    setup, _ = local_files.completed(path.stem, setup, data_dir=None)
    validate.check_setup(path.stem, setup)
    return setup


def data_folder(given: str | None) -> str:
    """The folder of the data files: the given one, else TRB_DATA_DIR's, else `data`."""
    return given or os.environ.get("TRB_DATA_DIR") or "data"


def _read_experiment(path: Path, overrides: Sequence[str]) -> config.Experiment:
    """Read, merge, convert and complete an experiment; rules between its keys are not checked."""
    raw, inline = _merged(path, overrides)
    file: config.ExperimentFile = build(config.ExperimentFile, raw)
    setups, notes = _setups_of(file, inline, path)
    large = any(needs_gpu(setup) for setup in setups.values())
    placement = _complete(file.runtime.placement, _placement_in(raw), otherwise=1 if large else 0)
    methods = _parse_methods(file, placement)
    return config.Experiment(
        name=file.name,
        setups=setups,
        methods=methods.grids,
        placements=methods.placements,
        seeds=file.seeds,
        method_seeds=methods.seeds,
        confirm=_with_confirmed_keys(file.confirm),
        search=file.search,
        points=methods.points,
        spaces=methods.spaces,
        caveat=file.caveat,
        data_dir=file.data_dir,
        runtime=replace(file.runtime, placement=placement),
        notes=tuple(dict.fromkeys(notes)),
    )


def _merged(path: Path, overrides: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values of a file under its overrides, and the setups that are written in it."""
    written = _canonical(_without_digests(read_yaml(path)))
    overridden = _canonical(read_overrides(overrides))
    if "seeds" in overridden and isinstance(written.get("methods"), dict):
        written["methods"] = _without_own_seeds(written["methods"])
    # `role_gpus` in an override replace the file's total of GPUs, which a plain merge would keep.
    kept = _below(_placement_in(written), _placement_in(overridden))
    if kept != _placement_in(written):
        written["runtime"] = written["runtime"] | {"placement": kept}
    raw: dict[str, Any] = {"name": path.stem} | merge(written, overridden)
    # An override may choose some of the file's own setups by name: `setups` is then a list.
    return raw, _setups_in(raw) or _setups_in(written)


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
        setup = build(config.Setup, merge(own, differences))
        setups[name], noted = local_files.completed(name, setup, data_folder(file.data_dir))
        notes += noted
    return setups, notes


def _checked_setup(path: Path) -> dict[str, Any]:
    """Read a setup file as written; UserError names the file if a key or a type is wrong."""
    raw = read_yaml(path)
    try:
        build(config.Setup, raw)
    except UserError as error:
        hint = ""
        if (error.key or "").endswith(".revision"):
            hint = "; leave it out at first for a model in a local folder"
        raise UserError(f"{from_here(path)}: {error}{hint}", error.key) from None
    return raw


def _setups_in(values: dict[str, Any]) -> dict[str, Any]:
    """Setups written in the experiment file itself, by name; UserError if one breaks a rule."""
    setups = values.get("setups")
    if not isinstance(setups, dict):
        return {}
    for name, setup in setups.items():
        try:
            build(config.Setup, setup)
        except UserError as error:
            raise UserError(f"setups.{name}: {error}", error.key) from None
    return setups


def _placement_in(values: dict[str, Any]) -> dict[str, Any]:
    """The `runtime.placement` of plain values; empty if they have none or it is no mapping."""
    runtime = values.get("runtime")
    placement = runtime.get("placement") if isinstance(runtime, dict) else None
    return placement if isinstance(placement, dict) else {}


def _canonical(values: dict[str, Any]) -> dict[str, Any]:
    """`values` with methods under their keys, the placement as a mapping, and dotted axes."""
    values = _with_dotted_axes(_with_method_keys(values))
    runtime = values.get("runtime")
    if isinstance(runtime, dict) and "placement" in runtime:
        placement = _in_full(runtime["placement"])
        return values | {"runtime": runtime | {"placement": placement}}
    return values


# --- files by name: shipped ones, and the user's own ---


def find_experiment(path: Path) -> Path:
    """`path` if it is a file, the file in a results folder, else a shipped experiment's file.

    Raises UserError, with the names of the shipped ones, if it is none of these.
    """
    if path.exists() and not path.is_dir():
        return path
    if (path / RECORD).is_file():
        return path / RECORD
    shipped = {file.stem: file for file in sorted(EXPERIMENTS.glob("*.yaml"))}
    name = path.name.removesuffix(".yaml")
    if path.parent == Path() and name in shipped:
        return shipped[name]
    if path.is_dir():
        raise UserError(
            f"{path}: a folder without {RECORD}: expected a file, a results folder, or one of {', '.join(shipped)}"
        )
    others = [
        file for file in path.parent.glob(f"{path.stem}.*") if file.suffix in (".yaml", ".yml")
    ]
    if others:
        raise refuse("EXP.yaml", str(path), f"a file that exists (did you mean {others[0]}?)")
    first, *rest = str(path).split(" ")
    if rest and names_experiment(first):
        raise UserError(
            f"{path}: no such file: expected {first}, with each override as a word of its own"
        )
    raise UserError(
        f"{path}: no such file: expected a file, or one of {', '.join(shipped)}{did_you_mean(name, [*shipped])}"
    )


def names_experiment(word: str) -> bool:
    """Whether a word means an experiment: a YAML file, a results folder, or a shipped one's name."""
    path = Path(word)
    is_shipped = (
        path.parent == Path()
        and (EXPERIMENTS / f"{path.name.removesuffix('.yaml')}.yaml").is_file()
    )
    return word.endswith((".yaml", ".yml")) or (path / RECORD).is_file() or is_shipped


def known_setups(beside: Path | None = None) -> list[str]:
    """Names of the usable setups: those beside the experiment file, and the shipped ones."""
    names: set[str] = set()
    for folder in _setup_folders(beside):
        for path in folder.glob("*.yaml"):
            names.add(path.stem)
    return sorted(names)


def _setup_folders(beside: Path | None) -> list[Path]:
    """The folders of setups, the user's own first."""
    return [beside.resolve().parent / "setups", SETUPS] if beside else [SETUPS]


def setup_path(name: str, beside: Path | None) -> Path:
    """The file of a setup. UserError, with the known names, if none has that name."""
    build(Name, name, "setups")
    for folder in _setup_folders(beside):
        if (folder / f"{name}.yaml").is_file():
            return folder / f"{name}.yaml"
    known = known_setups(beside)
    raise refuse("setups", name, f"one of {', '.join(known)}{did_you_mean(name, known)}")


# --- methods: grids of knobs, own placements and seeds ---


@dataclass(frozen=True)
class _Methods:
    """The `methods` of an experiment file: method → grid of knobs, own placement, seeds, points."""

    grids: dict[str, dict[str, list[Any]]]
    placements: dict[str, Placement]
    seeds: dict[str, list[int]]
    points: dict[str, PointList]
    spaces: dict[str, Space]


def _parse_methods(file: config.ExperimentFile, default: Placement) -> _Methods:
    """Parse the methods into grids, with the placements and seeds that some methods set themselves.

    A grid has the knobs of its method, and then the axes: those of its block over the shared ones.
    A method set to null is left out. Raises UserError on an unknown method or knob, a value of the
    wrong type or out of range, a missing knob or a repeated value.
    """
    parsed = _Methods({}, {}, {}, {}, {})
    for method, body in file.methods.items():
        if method not in METHODS:
            near = did_you_mean(method, [*METHODS, *map(method_label, METHODS)])
            raise UserError(
                f"methods.{method}: unknown method: expected one of {', '.join(METHODS)}{near}"
            )
        if body is None:
            continue
        key = f"methods.{method}"
        if not isinstance(body, dict):
            raise refuse(key, body, "a mapping of knobs to lists of values, {} for none")
        _check_names(key, method, body)
        points = body.get(POINTS)
        if points is None:
            space = _space(key, method, body, file.axes)
            settings = asked(key, space, file.search)
            if settings is not None and file.search.kind == "optuna":
                parsed.spaces[method] = space
        else:
            settings = _listed(f"{key}.{POINTS}", method, body, points)
            space = grid_of(settings)
        if settings is not None:
            parsed.points[method] = settings
            space = grid_of(settings)
        parsed.grids[method] = lists(space)
        if PLACEMENT_KEY in body:
            own = body[PLACEMENT_KEY]
            parsed.placements[method] = _placement_of_method(f"{key}.{PLACEMENT_KEY}", own, default)
        if SEEDS_KEY in body:
            parsed.seeds[method] = build(Seeds, body[SEEDS_KEY], f"{key}.{SEEDS_KEY}")
    return parsed


def _check_names(key: str, method: str, body: dict[str, Any]) -> None:
    """Raise UserError on a key of a method's block that it does not have."""
    knobs = METHODS[method].knobs
    for name in body:
        if name not in knobs and name not in RESERVED:
            if place := next(places(config.Training, name), None):
                near = f"{AXES}: {{training.{place}: …}}"
                raise UserError(f"{key}.{name}: unknown key, did you mean {near}?")
            raise unknown(f"{key}.{name}", "key", name, [*knobs, *RESERVED])


def _space(key: str, method: str, body: dict[str, Any], shared: dict[str, Any]) -> Space:
    """The values of a method's knobs and axes, of which `shared` are the experiment's."""
    space: dict[str, Any] = {}
    for name, knob in METHODS[method].knobs.items():
        where, raw = f"{key}.{name}", body.get(name)
        if raw is None or raw == []:
            right = f"one or several values, each {knob.describe()}"
            raise UserError(f"{where}: missing: expected {right}")
        space[name] = values_of(where, raw, functools.partial(_of_knob, where, knob))
    own = f"{key}.{AXES}"
    parse(body.get(AXES) or {}, own)  # a wrong one is named where it stands
    return space | parse(shared | (body.get(AXES) or {}))


def _of_knob(where: str, knob: Knob, raw: Any) -> Any:
    return build(knob.type, raw, where)


def _listed(key: str, method: str, body: dict[str, Any], points: Any) -> PointList:
    """The points that a method's block lists, each with all knobs and the same axes.

    Such a block has no grid. UserError on anything else.
    """
    knobs = METHODS[method].knobs
    beside = [name for name in body if name in knobs or name == AXES]
    if beside:
        raise UserError(f"{key}: the block has {beside[0]}, too: expected one of the two")
    if not isinstance(points, list) or not points or not all(isinstance(p, dict) for p in points):
        raise refuse(key, points, "a list of mappings of knobs and axes to one value each")
    names = [*knobs, *sorted(set(points[0]) - set(knobs))]
    settings: PointList = []
    for raw in points:
        point = flat({name: value for name, value in raw.items() if name not in knobs}, key)
        if {*point, *(knob for knob in knobs if knob in raw)} != set(names):
            raise refuse(key, raw, f"each of {', '.join(names)}" if names else "{}")
        setting: dict[str, Any] = {}
        for name in names:
            if name in knobs:
                setting[name] = build(knobs[name].type, raw[name], f"{key}.{name}")
            else:
                check_key(key, name)
                setting[name] = typed(key, name, point[name])
        if setting in settings:
            raise refuse(key, raw, "every point once")
        settings.append(setting)
    return settings


def _with_method_keys(values: dict[str, Any]) -> dict[str, Any]:
    """Values of an experiment file with methods under their keys, also if written as labels: `TRB`.

    Raises UserError if two names mean one method.
    """
    methods = values.get("methods")
    if not isinstance(methods, dict):
        return values
    by_key: dict[str, Any] = {}
    for name, body in methods.items():
        key = method_key(str(name))
        if key in by_key:
            raise UserError(f"methods.{name}: another name of {key}: expected every method once")
        by_key[key] = body
    return values | {"methods": by_key}


def _with_dotted_axes(values: dict[str, Any]) -> dict[str, Any]:
    """Values of an experiment file with the axes, also those of its methods, by dotted keys."""
    changed = values | ({AXES: flat(values[AXES])} if AXES in values else {})
    if isinstance(values.get("methods"), dict):
        changed["methods"] = dict(values["methods"])
        for method, body in values["methods"].items():
            if isinstance(body, dict) and AXES in body:
                own = flat(body[AXES], f"methods.{method}.{AXES}")
                changed["methods"][method] = body | {AXES: own}
    return changed


def _with_confirmed_keys(confirm: Confirm) -> Confirm:
    """`confirm` with its methods under their keys, also if the file gives their labels."""
    if confirm.methods is None:
        return confirm
    return replace(confirm, methods=list(map(method_key, confirm.methods)))


def _without_own_seeds(raw: dict[str, Any]) -> dict[str, Any]:
    """`methods` of an experiment file without the methods' own seeds; other values stay unchanged."""
    shared: dict[str, Any] = {}
    for method, body in raw.items():
        if isinstance(body, dict):
            body = {key: value for key, value in body.items() if key != SEEDS_KEY}
        shared[method] = body
    return shared


# --- placements, of an experiment and of single methods ---


def _in_full(given: Any) -> Any:
    """A placement that is given as its mode alone, `split`, as a mapping; others unchanged."""
    return {"mode": given} if isinstance(given, str) else given


def _below(lower: dict[str, Any], upper: dict[str, Any]) -> dict[str, Any]:
    """The keys of `lower` that stay when the placement `upper` is put over it.

    `role_gpus` in `upper` replace the total `gpus` of `lower`.
    """
    kept = dict(lower)
    if "role_gpus" in upper and "gpus" not in upper:
        kept.pop("gpus", None)
    return kept


def _complete(placement: Placement, given: dict[str, Any], otherwise: float) -> Placement:
    """Derive `gpus` where `given` lacks it: the sum of `role_gpus`, else `otherwise`."""
    if "gpus" in given:
        return placement
    roles = placement.role_gpus
    return replace(placement, gpus=otherwise if roles is None else roles.total)


def _placement_of_method(key: str, raw: Any, default: Placement) -> Placement:
    """The placement that a method sets itself; keys that it does not give come from `default`.

    A placement with another mode keeps no `role_gpus` of `default`.
    """
    given = _in_full(raw)
    if not isinstance(given, dict):
        modes, keys = ", ".join(entry(PlacementMode).choices), ", ".join(entries(Placement))
        raise refuse(key, raw, f"{modes}, or a mapping with {keys}")
    lower = asdict(default)
    if given.get("mode", default.mode) != default.mode:
        lower["role_gpus"] = None
    merged = _below(lower, given) | given
    return _complete(build(Placement, merged, key), merged, otherwise=0)


# --- the resolved experiment, a file again ---


def resolved_text(experiment: Experiment, digests: Mapping[str, str]) -> str:
    """The text of `experiment.yaml`; `digests` has the values of DIGESTS."""
    document = _plain({**digests, **resolved(experiment)})
    return HEAD + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)


def resolved(experiment: Experiment) -> dict[str, Any]:
    """The experiment as the values of a file, its setups in full."""
    methods: dict[str, dict[str, Any]] = {}
    for name, grid in experiment.methods.items():
        if name in experiment.spaces:
            space = {knob: written(values) for knob, values in experiment.spaces[name].items()}
            methods[name] = own_knobs(space) | {AXES: axes_of(space)}
        elif name in experiment.points:
            methods[name] = {POINTS: experiment.points[name]}
        else:
            methods[name] = own_knobs(grid)
            if axes := axes_of(grid):
                methods[name][AXES] = axes
        if name in experiment.placements:
            methods[name][PLACEMENT_KEY] = asdict(experiment.placements[name])
        if name in experiment.method_seeds:
            methods[name][SEEDS_KEY] = experiment.method_seeds[name]
    document: dict[str, Any] = {
        "name": experiment.name,
        "setups": {name: asdict(setup) for name, setup in experiment.setups.items()},
        "methods": methods,
        "seeds": experiment.seeds,
    }
    if experiment.search != Search():
        document["search"] = asdict(experiment.search)
    if experiment.confirm.seeds:
        document["confirm"] = asdict(experiment.confirm)
    if experiment.caveat is not None:
        document["caveat"] = experiment.caveat
    document["data_dir"] = experiment.data_dir
    document["runtime"] = asdict(experiment.runtime)
    return document


def _without_digests(raw: dict[str, Any]) -> dict[str, Any]:
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
