"""What is declared is what is imported, the lock holds it, and an installed wheel finds what it
needs.
"""

from __future__ import annotations

import ast
import configparser
import importlib.metadata
import importlib.util
import re
import shutil
import site
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from orchestrator.engines.sglang import private, toolchain
from tests.engines.installed import skip_without
from tests.sweeps import ROOT, environment

OURS = {"orchestrator", "analysis", "tests", "benchmarks"}
# Declared and not imported by our own code, with the reason.
NOT_IMPORTED = {
    "uv": "docker/lock runs it",
    "plotly": "the report embeds the script that it ships",
    "ruff": "a command",
    "pyright": "a command",
    "pre-commit": "a command",
    "pre-commit-hooks": "commands",
    "pytest-timeout": "a plugin of pytest",
    "pytest-xdist": "a plugin of pytest",
}


# --- setup.cfg against the code ---


def declared() -> dict[str, list[Requirement]]:
    """Extra → requirements of setup.cfg; `runtime` is install_requires."""
    cfg = configparser.ConfigParser()
    cfg.read(ROOT / "setup.cfg")
    parts = {"runtime": cfg["options"]["install_requires"], **cfg["options.extras_require"]}
    return {
        part: [Requirement(line) for line in lines.split("\n") if line]
        for part, lines in parts.items()
    }


def names(*parts: str) -> set[str]:
    return {
        canonicalize_name(requirement.name) for part in parts for requirement in declared()[part]
    }


def imported(*folders: str) -> set[str]:
    """Distributions whose modules are imported by the files in these folders, also inside
    functions.
    """
    providers = importlib.metadata.packages_distributions()
    distributions = set()
    for folder in folders:
        for file in (ROOT / folder).rglob("*.py"):
            for module in top_level_imports(file) - OURS - sys.stdlib_module_names:
                # What is not installed (the extra `hub`) goes by its module's name.
                distributions |= {
                    canonicalize_name(name) for name in providers.get(module, [module])
                }
    return distributions


def top_level_imports(file: Path) -> set[str]:
    words = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            words |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            words.add(node.module.split(".")[0])
    return words


def test_what_the_product_imports_is_declared() -> None:
    engines = set(map(canonicalize_name, install.read_pins("engines")))
    assert (
        imported("orchestrator", "analysis")
        <= names("runtime", "hub", "tracking", "search") | engines
    )


def test_what_tests_import_is_declared() -> None:
    engines = set(map(canonicalize_name, install.read_pins("engines")))
    assert imported("tests", "benchmarks") <= names(*declared()) | engines


def test_what_is_declared_is_imported() -> None:
    assert names(*declared()) - imported(*OURS) == NOT_IMPORTED.keys()


# --- the lock ---


def lock_script(name: str) -> ModuleType:
    """A script of docker/lock as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docker" / "lock" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(
        spec
    )  # resolve.py imports install.py
    spec.loader.exec_module(module)
    return module


install = lock_script("install")
resolve = lock_script("resolve")
upgrade = lock_script("upgrade")


@pytest.mark.parametrize(
    ("parts", "files"), [(("runtime", "hub"), ["runtime"]), (None, ["runtime", "dev"])]
)
def test_the_lock_pins_what_is_declared(parts: tuple[str, ...] | None, files: list[str]) -> None:
    pins = {
        name: install.pin_version(pin)
        for file in files
        for name, pin in install.read_pins(file).items()
    }
    for requirement in (r for part in parts or declared() for r in declared()[part]):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), (
            requirement
        )


def test_a_torch_for_cpus_leaves_out_what_only_cuda_needs() -> None:
    pins = install.read_pins("runtime")
    left_out = pins.keys() - install.without_cuda(pins).keys()
    assert {"torch", "triton", "cuda-toolkit", "nvidia-cublas"} <= left_out
    for name in left_out - {"torch"}:
        who = set(re.findall(r"[a-z0-9-]+", pins[name].partition("# via")[2]))
        assert who
        assert who <= left_out, f"{name} is needed by {who}"


@pytest.mark.parametrize(
    ("wanted", "installed", "driver", "kind", "said"),
    [
        ("auto", None, "580.65.06", "cuda", None),
        ("auto", None, None, "cpu", "no NVIDIA driver"),
        ("auto", "2.13.0+cpu", "580.65.06", "cpu", "2.13.0+cpu is installed"),
        ("cpu", "2.13.0", "580.65.06", "cpu", None),
        ("cuda", None, "535.183.01", "cuda", "535.183.01 is too old"),
    ],
)
def test_which_torch_is_installed_and_what_is_said(
    wanted: str, installed: str | None, driver: str | None, kind: str, said: str | None
) -> None:
    assert install.torch_kind(wanted, installed, driver, "linux") == kind
    line = install.remark(wanted, installed, driver, "linux")
    assert (line is None) is (said is None)
    assert (said or "") in (line or "")


def test_a_system_that_is_too_old_for_sglang_is_said_before_anything_is_fetched(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(install.platform, "libc_ver", lambda: ("glibc", "2.28"))
    monkeypatch.setattr(install, "install_uv", lambda: pytest.fail("nothing is fetched"))
    monkeypatch.setattr(sys, "argv", ["install.py", "engines"])
    with pytest.raises(SystemExit) as ended:
        install.main()
    assert ended.value.code == 2
    assert "glibc 2.28: expected 2.34 or newer" in capsys.readouterr().err


def test_engines_are_pinned_beside_everything_else() -> None:
    others = set(install.read_pins("runtime")) | set(install.read_pins("dev"))
    pins, kernels, compiler = (
        install.read_pins(part) for part in ("engines", "kernels", "compiler")
    )
    assert set(pins) & others == {"triton"}, "torch's build for GPUs has one of its own"
    assert not set(kernels) & (others | set(pins))
    assert not set(compiler) & (others | set(pins) | set(kernels))
    for pin in (*pins.values(), *kernels.values(), *compiler.values()):
        assert "--hash=sha256:" in pin
    assert install.pin_version(pins["sglang"]) == private.VERSION


def test_nvcc_is_of_the_cuda_that_torch_brings() -> None:
    runtime = install.pin_version(install.read_pins("runtime")["nvidia-cuda-runtime"])
    release = runtime.rsplit(".", 1)[0]
    for pin in install.read_pins("compiler").values():
        assert install.pin_version(pin).rsplit(".", 1)[0] == release, pin
    assert runtime.split(".")[0] == str(toolchain.CUDA)
    assert toolchain.WHEEL in install.read_pins("compiler")


# Engines name these packages of dev.txt and never import them here, with the reason.
NOT_NEEDED = {"tensorboard": "verl's own logger, which is not chosen"}


@pytest.mark.engines
def test_engines_need_nothing_else_of_what_tests_need() -> None:
    skip_without("sglang")
    dev, needed = install.read_pins("dev"), set()
    waiting = {*install.read_pins("engines")} & {
        canonicalize_name(each.name) for each in importlib.metadata.distributions()
    }
    while waiting:
        for requirement in map(Requirement, importlib.metadata.requires(waiting.pop()) or []):
            name = canonicalize_name(requirement.name)
            wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if wanted and name in dev and name not in needed | NOT_NEEDED.keys():
                needed.add(name)
                waiting.add(name)
    assert needed == set(install.FROM_DEV)


# SGLang names these versions and the lock holds others, with the reason.
OTHER_THAN_NAMED = {
    "cuda-tile": "the index has only a script of 1.6.0rc5, which fetches a wheel from elsewhere",
}


@pytest.mark.engines
def test_what_sglang_names_is_pinned() -> None:
    skip_without("sglang")
    pins = {}
    for part in ("runtime", "dev", "engines", "kernels"):
        pins |= {name: install.pin_version(pin) for name, pin in install.read_pins(part).items()}
    differs = set()
    for requirement in map(Requirement, importlib.metadata.requires("sglang") or []):
        name = canonicalize_name(requirement.name)
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if (
            wanted
            and name in pins
            and not requirement.specifier.contains(pins[name], prereleases=True)
        ):
            differs.add(name)
    assert differs == OTHER_THAN_NAMED.keys()


def installed_there(
    folder: Path, **declared: tuple[str, list[str]]
) -> dict[str, importlib.metadata.Distribution]:
    """Distributions in a folder by name, each with its version and what it declares."""
    for name, (version, requirements) in declared.items():
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        lines = [f"Requires-Dist: {requirement}" for requirement in requirements]
        (info / "METADATA").write_text(
            "\n".join([f"Name: {name}", f"Version: {version}", *lines, "", ""])
        )
    return {each.name: each for each in importlib.metadata.distributions(path=[str(folder)])}


def test_an_upgrade_names_what_does_not_fit(tmp_path: Path) -> None:
    found = installed_there(
        tmp_path,
        sglang=(
            "0.5.23",
            ["torch==2.14.1", "transformers<6", "flashinfer-python; extra == 'gpu'", "xgrammar>=1"],
        ),
        torch=("2.13.0+cpu", ["triton==3.9; sys_platform == 'nowhere'"]),
        transformers=("5.12.1", []),
    )
    assert list(upgrade.contradictions(found)) == [
        "sglang wants torch==2.14.1; here 2.13.0+cpu",
        "sglang wants xgrammar>=1; not here",
    ]


def test_a_lock_that_differs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """This uv adds nothing and drops nothing, so runtime.txt comes out with dev.txt's pins, too."""

    def uv(_: str, asked: str, *how: str) -> None:
        if "--no-deps" in how:
            shutil.copy(asked, how[-1])

    monkeypatch.setattr(resolve, "uv", uv)
    monkeypatch.setattr(sys, "argv", ["resolve.py", "check"])
    with pytest.raises(SystemExit, match=r"run make lock\n(.*\n)*runtime\.txt: \+ ruff=="):
        resolve.main()


# --- the wheel ---


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The Python of an environment with our wheel in it, and beside it all that this one has."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # building writes beside the sources
    for part in ("orchestrator", "analysis", "experiments"):
        shutil.copytree(ROOT / part, source / part, ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("setup.cfg", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / part, source / part)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-qq"]
    offline = ("--no-deps", "--no-index")
    run([*pip, "wheel", *offline, "--no-build-isolation", "-w", str(folder), str(source)], folder)
    shutil.rmtree(source)
    run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], folder)
    python = folder / "env" / "bin" / "python"
    packages = next((folder / "env" / "lib").glob("python*/site-packages"))
    (packages / "shared.pth").write_text("\n".join(shared_packages()) + "\n")
    run(
        [*pip, "--python", str(python), "install", *offline, *map(str, folder.glob("*.whl"))],
        folder,
    )
    yield python
    shutil.rmtree(folder)


def shared_packages() -> list[str]:
    return [path for path in sys.path if path.endswith("site-packages")] or site.getsitepackages()


def run(command: list[str], cwd: Path) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_an_installed_wheel_plans_a_shipped_experiment(installed: Path, tmp_path: Path) -> None:
    shown = run([str(installed.parent / "trb"), "plan", "quickstart.yaml"], tmp_path)
    packed = next(installed.parents[1].glob("lib/*/site-packages")) / "orchestrator" / "shipped"
    assert f"experiment: {packed / 'quickstart.yaml'}" in shown
    assert "trust_region" in shown or "TRB" in shown


def test_an_installed_wheel_holds_all_that_the_checkout_has(installed: Path) -> None:
    packages = next(installed.parents[1].glob("lib/*/site-packages"))
    for package in ("orchestrator", "analysis"):
        files = [
            file
            for file in (ROOT / package).rglob("*")
            if file.is_file() and "__pycache__" not in file.parts
        ]
        assert [file for file in files if not (packages / file.relative_to(ROOT)).is_file()] == []
    for file in (ROOT / "experiments").rglob("*.yaml"):
        assert (
            packages / "orchestrator" / "shipped" / file.relative_to(ROOT / "experiments")
        ).is_file()


def test_version(installed: Path, tmp_path: Path) -> None:
    cfg = configparser.ConfigParser()
    cfg.read(ROOT / "setup.cfg")
    assert (
        run([str(installed.parent / "trb"), "--version"], tmp_path)
        == f"trb {cfg['metadata']['version']}\n"
    )
