"""The rooms of the program: imports point one way, down the floors that the packages' docstrings
list.
"""

from __future__ import annotations

import ast
import functools
import graphlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from orchestrator.experiment.methods import METHODS
from tests.sweeps import ROOT, environment


def names(text: str) -> set[str]:
    return set(text.split())


PACKAGES = ("orchestrator", "analysis")
FILES_AT_MOST = 252  # of the product: a file has two readers or 120 lines
LINES_AT_MOST = 600  # of a file, which is read whole
FOR_ANALYSIS = names("config pair errors data experiment records selection monitor sheet")
USING_ANALYSIS = {f"orchestrator.{room}" for room in names("commands view cli tracking")}
# These import the engines' own folders; all others know their catalog alone.
USING_ENGINES = {"workers", "checks", "trial"}
CONFINED = {
    "wandb": {"orchestrator.tracking.wandb_tracker", "orchestrator.tracking.dashboard"},
    "wandb_workspaces": {"orchestrator.tracking.dashboard"},
    "tensorboard": {"orchestrator.tracking.tensorboard"},
    "optuna": {"orchestrator.sweep.asking"},
    "ray": {
        "orchestrator.sweep.asking",
        "orchestrator.sweep.cluster",
        "orchestrator.sweep.nodes",
        "orchestrator.sweep.tuner",
        "orchestrator.sweep.processes",
        "orchestrator.sweep.failures",
        "orchestrator.workers.actors",
    },
}
# The palette of the paper's methods, and which of them a figure shows.
NAMING_METHODS = {"analysis.figures.panels", "analysis.figures.training"}
HEAVY = names("torch ray transformers wandb tensorboard textual matplotlib pandas datasets")
# Rooms, and single modules of others, that load none of these.
LIGHT = names(
    "errors user_code config pair rules cores liveness records grading experiment selection "
    "planning monitor cli"
)
LIGHT_MODULES = names(
    "policy.spec engines.memory data.benchmarks data.files data.sources models.locate "
    "tracking.tracker checks.bench checks.check checks.experiment"
)


@functools.cache
def modules() -> dict[str, Path]:
    """Dotted name → file of every module of the product, without those that only describe a room."""
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    return {
        ".".join(file.relative_to(ROOT).with_suffix("").parts): file
        for file in files
        if file.stem != "__init__"
    }


@functools.cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def floors(package: str) -> list[set[str]]:
    """The rooms of each floor, the lowest first: the indented block of the package's docstring."""
    text = ast.get_docstring(tree(ROOT / package / "__init__.py")) or ""
    lines = re.findall(r"^ {4}([a-z_, ]+)$", text, flags=re.MULTILINE)
    return [set(line.split(", ")) for line in lines]


FLOORS = {package: floors(package) for package in PACKAGES}


@functools.cache
def imported(file: Path) -> set[str]:
    """Dotted names a file imports, also inside functions; `from a import b` is both a and a.b."""
    names = set()
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            names |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


@functools.cache
def own_imports(name: str) -> set[str]:
    """Product modules that a product module imports."""
    known = modules()
    return {target for target in imported(known[name]) if target in known} - {name}


def room(name: str) -> str:
    return name.split(".")[1]


def floor(name: str) -> int:
    """The floor of a module's room, counted from the lowest."""
    found = [index for index, rooms in enumerate(FLOORS[name.split(".")[0]]) if room(name) in rooms]
    assert len(found) == 1, f"{name}: expected one place in the table of its package's __init__"
    return found[0]


def test_imports_point_down() -> None:
    upward = []
    for name in modules():
        for target in own_imports(name):
            within = target.split(".")[0] == name.split(".")[0] and room(target) != room(name)
            if within and floor(target) >= floor(name):
                upward.append(f"{name} imports {target}")
    assert upward == []


def test_the_tables_name_what_is_there() -> None:
    for package in PACKAGES:
        there = {room(name) for name in modules() if name.startswith(f"{package}.")}
        assert set().union(*FLOORS[package]) == there
        assert sum(map(len, FLOORS[package])) == len(there)


def test_files_are_few_and_can_be_read_whole() -> None:
    assert sum(1 for package in PACKAGES for _ in (ROOT / package).rglob("*.py")) <= FILES_AT_MOST
    lines = {name: len(file.read_text("utf-8").splitlines()) for name, file in modules().items()}
    assert {name for name, count in lines.items() if count > LINES_AT_MOST} == set()


def test_no_module_imports_itself_in_a_circle() -> None:
    graph = {name: own_imports(name) for name in modules()}
    assert set(graphlib.TopologicalSorter(graph).static_order()) == set(graph)


def test_analysis_reads_and_is_used_by_commands() -> None:
    for name in modules():
        across = {
            target for target in own_imports(name) if target.split(".")[0] != name.split(".")[0]
        }
        if name.startswith("analysis."):
            assert {room(target) for target in across} <= FOR_ANALYSIS, name
        elif across:
            assert ".".join(name.split(".")[:2]) in USING_ANALYSIS, name


def test_engines_are_behind_their_users() -> None:
    for name in modules():
        inside = [
            target
            for target in own_imports(name)
            if re.match(r"orchestrator\.engines\.\w+\.", target)
        ]
        assert not inside or room(name) in USING_ENGINES | {"engines"}, f"{name} imports {inside}"


# What shows a study renders `analysis.facts` and computes nothing: of what lies under the facts it
# imports the study, the results folder, and the one reader of texts and logs.
SURFACES = names(
    "analysis.table analysis.report analysis.figures analysis.frames "
    "analysis.results orchestrator.view orchestrator.tracking orchestrator.commands.status "
    "orchestrator.commands.table orchestrator.commands.report orchestrator.commands.pack "
    "orchestrator.commands.model_card"
)
READ_BY_SURFACES = names(
    "orchestrator.selection.study orchestrator.selection.results_folder orchestrator.records.rundir "
    "orchestrator.records.files orchestrator.records.log orchestrator.records.slices"
)


def test_surfaces_render_facts() -> None:
    below = ("orchestrator.selection.", "orchestrator.records.")
    for name in modules():
        if name in SURFACES or name.rpartition(".")[0] in SURFACES:
            more = {target for target in own_imports(name) if target.startswith(below)}
            assert more <= READ_BY_SURFACES, name


def test_where_packages_are_imported() -> None:
    users: dict[str, set[str]] = {package: set() for package in CONFINED}
    for name, file in modules().items():
        for package in {target.split(".")[0] for target in imported(file)} & CONFINED.keys():
            users[package].add(name)
    assert users == CONFINED


def test_methods_are_named_in_their_rows_alone() -> None:
    """Elsewhere code asks a method's row, so that another method needs no edit there."""
    spelled = set()
    for name, file in modules().items():
        texts = {node.value for node in ast.walk(tree(file)) if isinstance(node, ast.Constant)}
        spelled |= {name} if texts & METHODS.keys() else set()
    assert spelled == {"orchestrator.experiment.methods", *NAMING_METHODS}


def test_every_room_says_what_it_is_for() -> None:
    for folder in {file.parent for file in modules().values()}:
        assert ast.get_docstring(tree(folder / "__init__.py")), folder


def test_nothing_loads_transformers_before_sglang() -> None:
    """transformers looks for torchvision once; beside torch's build for CPUs it lies aside until
    `prepare` of `engines.sglang.private`.
    """
    code = (
        "import sys, orchestrator.engines.sglang.private, orchestrator.checks.machine\n"
        "sys.exit('transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(), check=False)
    assert done.returncode == 0


def test_rooms_of_plans_and_records_are_light() -> None:
    """None of their modules loads torch, ray or the like, directly or by what it imports."""
    own = [name for name in modules() if name.startswith("orchestrator.")]
    light = [name for name in own if room(name) in LIGHT or name.split(".", 1)[1] in LIGHT_MODULES]
    assert {name.split(".", 1)[1] for name in light} >= LIGHT_MODULES
    code = f"""
import importlib, json, sys
loaded = {{}}
for name in {light!r}:
    importlib.import_module(name)
    for heavy in {HEAVY!r} & set(sys.modules):
        loaded.setdefault(heavy, name)
print(json.dumps(loaded))
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, check=True, cwd=ROOT, env=environment(), capture_output=True, text=True
    )
    assert json.loads(done.stdout) == {}


# --- prose ---

OPENINGS = re.compile(r"(What|Whatever|Who|Whoever|Those|Nobody)\b")
QUOTED = re.compile(r"`([a-z_]\w*(?:\.[a-z_]\w*)*)(?:\(\))?`")
# Names of other programs, and examples, that docstrings speak of.
FOREIGN = names(
    "taskset get_default_attn_backend optimizer_zero_grad optimizer_step apples step_000020"
)


def docstrings() -> dict[str, str]:
    """`module:line` → docstring of every module, class and function of the product."""
    found = {}
    for name, file in modules().items():
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (
                text := ast.get_docstring(node)
            ):
                found[f"{name}:{getattr(node, 'lineno', 1)}"] = text
    return found


def test_docstrings_begin_with_a_verb_or_a_name() -> None:
    assert [where for where, text in docstrings().items() if OPENINGS.match(text)] == []


def test_names_in_docstrings_are_in_the_tree() -> None:
    """Every part of a name in backticks is a name or a word of a string somewhere in the product,
    or a file.
    """
    known = FOREIGN | {part for name in modules() for part in name.split(".")}
    for file in (ROOT / "experiments").rglob("*.yaml"):
        known |= words(file.read_text(encoding="utf-8"))
    for file in modules().values():
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = text.replace(ast.get_docstring(node, clean=False) or "\0", "")
        known |= words(text)
    stale = []
    for where, text in docstrings().items():
        for name in QUOTED.findall(text):
            if not set(name.split(".")) <= known:
                stale.append(f"{where}: {name}")
    assert not stale, "\n".join(stale)


def words(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", text))


def test_no_two_types_share_a_name() -> None:
    """Classes and the types that modules name, such as `Table = tuple[list, list]`; aliases of one
    type may stand in several modules, and imports may not give a type another name.
    """
    owners: dict[str, dict[str, str]] = {}
    renamed = []
    for module, file in modules().items():
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.ClassDef):
                owners.setdefault(node.name, {})[module] = module
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGES):
                renamed += [
                    f"{module}: {alias.name} as {alias.asname}"
                    for alias in node.names
                    if alias.asname and TYPE.match(alias.name)
                ]
        for name, value in named_types(file):
            owners.setdefault(name, {})[module] = value
    assert renamed == []
    shared = {name for name, places in owners.items() if len(set(places.values())) > 1}
    assert not shared, {name: owners[name] for name in shared}


TYPE = re.compile(r"[A-Z]+[a-z]\w*$")


def named_types(file: Path) -> Iterator[tuple[str, str]]:
    """Name and value of what a module assigns to names like those of classes; variables of types
    are no types.
    """
    for node in tree(file).body:
        if isinstance(node, ast.Assign) and not ast.unparse(node.value).startswith("TypeVar("):
            for target in node.targets:
                if isinstance(target, ast.Name) and TYPE.match(target.id):
                    yield target.id, ast.unparse(node.value)
