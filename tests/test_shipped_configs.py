"""Every shipped file loads; the command starts light; imports point one way."""

from __future__ import annotations

import ast
import graphlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.grid import expand, waves
from orchestrator.load import load_experiment, load_setup
from tests.sweeps import ROOT, environment

EXPERIMENTS = sorted((ROOT / "experiments").glob("*.yaml"))
SETUPS = sorted((ROOT / "experiments" / "setups").glob("*.yaml"))
QUICKSTART = str(ROOT / "experiments" / "quickstart.yaml")
HEAVY = {"torch", "ray", "transformers", "pandas", "wandb", "matplotlib", "datasets"}

# A module imports from the layers above its own line, or from its own package.
LAYERS = (
    {"errors", "config", "cores", "records", "runlog", "provenance", "ray_environment", "scratch", "pulse"},
    {"strict", "shipped", "files", "arguments", "yaml_limits", "guard", "preflight"},
    {"methods", "lease"},
    {"policy", "objective", "placement", "memory", "rundir", "race"},
    {"batch", "tasks"},
    {"identity"},
    {"made_models"},
    {"diagnostics", "engines", "grid", "validate", "local_files"},
    {"selection", "probe_unit", "probe_documents", "results_folder"},
    {"wants", "evaluation_budget"},
    {"damage"},
    {"plan"},
    {"plan_totals", "progress", "timings"},
    {"cpu_time", "time_left"},
    {"workers", "load", "retention", "status", "wandb_mode", "wandb_projection"},
    {
        "prepare",
        "training_step",
        "continuation",
        "display",
        "logs",
        "plan_view",
        "config_reference",
        "data_fetch",
        "wandb_mirror",
        "wandb_dashboard",
    },
    {"trial", "mirroring", "plan_command", "watching", "failures", "watchdog"},
    {"trainable"},
    {"sweep"},
    {"submit", "spending", "status_command", "doctor", "regrade", "standalone_eval", "probe", "listing"},
    {"cli"},
)
FOR_ANALYSIS = {
    *("config", "methods", "grid", "rundir", "selection", "status", "load", "records", "errors", "probe_unit"),
    "files",
    "results_folder",
    "tasks.benchmarks",
}
USING_ANALYSIS = {"orchestrator.submit", "orchestrator.standalone_eval", "orchestrator.cli"}
CONFINED = {
    "wandb": {"orchestrator.wandb_mirror", "orchestrator.wandb_dashboard"},
    "wandb_workspaces": {"orchestrator.wandb_dashboard"},
    "ray": {"orchestrator.sweep", "orchestrator.trainable", "orchestrator.workers.actors", "orchestrator.failures"},
}


def stem(path: Path) -> str:
    return path.stem


# --- shipped files ---


@pytest.mark.parametrize("path", EXPERIMENTS, ids=stem)
def test_experiments_load_and_expand(path: Path) -> None:
    experiment = load_experiment(path)
    units = expand(experiment)
    assert experiment.name == path.stem
    assert {unit.setup for unit in units} == set(experiment.setups)
    assert {unit.method for unit in units} - {None} == set(experiment.methods)
    assert len({unit.id for unit in units}) == len(units) == sum(map(len, waves(units)))


@pytest.mark.parametrize("path", SETUPS, ids=stem)
def test_setups_load(path: Path) -> None:
    setup = load_setup(path.stem)
    assert setup.title
    assert setup.evaluation.benchmarks


def test_the_documented_ones_are_there() -> None:
    assert {"quickstart", "paper"} <= set(map(stem, EXPERIMENTS))
    assert {"arithmetic", "qwen3-1.7b", "qwen3-0.6b"} <= set(map(stem, SETUPS))


# --- start-up ---


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["config"],
        ["config", QUICKSTART],
        ["plan", QUICKSTART],
        ["plan", str(ROOT / "experiments" / "paper.yaml"), "--json"],
        ["status", QUICKSTART, "--runs", str(ROOT / "experiments")],  # a folder without runs
        ["table", QUICKSTART, "--runs", str(ROOT / "experiments")],
    ],
    ids=lambda arguments: arguments[0],
)
def test_light_commands_import_nothing_heavy(arguments: list[str]) -> None:
    code = f"""
import json, sys
from orchestrator.cli import main
try:
    main({arguments!r})
except SystemExit as ended:
    print(json.dumps([ended.code, sorted({HEAVY!r} & set(sys.modules))]), file=sys.stderr)
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=False, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert json.loads(done.stderr) == [0, []]
    assert done.stdout


# --- imports ---


def modules() -> dict[str, Path]:
    """Dotted name → file of every module of the product."""
    files = [file for package in ("orchestrator", "analysis") for file in sorted((ROOT / package).rglob("*.py"))]
    return {".".join(file.relative_to(ROOT).with_suffix("").parts): file for file in files if file.stem != "__init__"}


def imported(file: Path) -> Iterator[str]:
    """Dotted names a file imports, also inside functions; `from a import b` is both a and a.b."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_imports(name: str) -> set[str]:
    """Product modules that a product module imports."""
    known = modules()
    return {target for target in imported(known[name]) if target in known} - {name}


def layer(name: str) -> int:
    """The line of LAYERS that a module of orchestrator stands in."""
    part = name.split(".")[1]
    found = [index for index, names in enumerate(LAYERS) if part in names]
    assert len(found) == 1, f"{name} needs one place in LAYERS"
    return found[0]


@pytest.mark.parametrize("name", [name for name in modules() if name.startswith("orchestrator.")])
def test_imports_point_one_way(name: str) -> None:
    for target in own_imports(name):
        if target.startswith("analysis."):
            assert name in USING_ANALYSIS, f"{name} imports {target}"
        else:
            same_package = len(name.split(".")) == 3 and target.split(".")[:2] == name.split(".")[:2]
            assert same_package or layer(target) < layer(name), f"{name} imports {target}"


def test_layers_name_nothing_that_is_gone() -> None:
    assert set().union(*LAYERS) == {name.split(".")[1] for name in modules() if name.startswith("orchestrator.")}


def test_no_module_imports_itself_in_a_circle() -> None:
    graph = {name: own_imports(name) for name in modules()}
    assert set(graphlib.TopologicalSorter(graph).static_order()) == set(graph)


@pytest.mark.parametrize("name", [name for name in modules() if name.startswith("analysis.")])
def test_analysis_reads_directories_and_configs_only(name: str) -> None:
    used = {target.split(".", 1)[1] for target in own_imports(name) if target.startswith("orchestrator.")}
    assert used <= FOR_ANALYSIS
    assert not {target.split(".")[0] for target in imported(modules()[name])} & {
        "torch",
        "ray",
        "wandb",
        "transformers",
    }


@pytest.mark.parametrize("package", CONFINED)
def test_where_a_package_is_imported(package: str) -> None:
    users = {n for n, file in modules().items() if package in {target.split(".")[0] for target in imported(file)}}
    assert users == CONFINED[package]


@pytest.mark.parametrize("part", ["policy", "objective", "tasks"])
def test_laws_and_tasks_know_no_engine(part: str) -> None:
    own = [name for name in modules() if name.split(".")[:2] == ["orchestrator", part]]
    assert own
    assert {target for name in own for target in own_imports(name) if layer(target) > layer(name)} == set()
