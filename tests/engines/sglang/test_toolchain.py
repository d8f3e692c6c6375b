"""Compilers are found where they are, what is missing is named, and SGLang builds a kernel with
nvcc from the lock.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.config import Runtime
from orchestrator.engines.interface import Job, ModelFolder
from orchestrator.engines.sglang import engine as module
from orchestrator.engines.sglang import toolchain
from orchestrator.engines.sglang.process import EngineProcess, Settings
from orchestrator.errors import EngineLost
from orchestrator.experiment.load import load_setup
from tests.engines.installed import skip_without
from tests.sweeps import ROOT

NOWHERE = Path("/nowhere")


def write_toolkit(folder: Path, version: int = 13000) -> Path:
    """A folder with all that is looked for, of a release of CUDA."""
    for part in toolchain.PARTS:
        (folder / part).parent.mkdir(parents=True, exist_ok=True)
        (folder / part).touch(0o755)
    (folder / "include" / "cuda.h").write_text(f"#define CUDA_VERSION {version}\n")
    return folder


@pytest.fixture(autouse=True)
def _no_wheels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Toolkits are those that a test makes, unless it is about the wheels."""
    if request.node.get_closest_marker("engines") is None:
        monkeypatch.setattr(toolchain, "WHEEL", "not-a-distribution")
        monkeypatch.setattr(toolchain, "RUNTIME", "not-a-distribution")


# --- which toolkit ---


def test_the_environments_toolkit_comes_before_the_systems(tmp_path: Path) -> None:
    system, own = write_toolkit(tmp_path / "cuda-13.0").parent, write_toolkit(tmp_path / "own")
    assert toolchain.toolkit({"CUDA_HOME": str(own), "PATH": ""}, system) == own
    assert toolchain.toolkit({"CUDA_PATH": str(own), "PATH": ""}, system) == own
    assert toolchain.toolkit({"PATH": str(own / "bin")}, system) == own
    assert toolchain.toolkit({"PATH": ""}, system) == system / "cuda-13.0"


def test_a_toolkit_of_another_cuda_is_passed_over(tmp_path: Path) -> None:
    old, new = write_toolkit(tmp_path / "old", 12080), write_toolkit(tmp_path / "cuda")
    assert toolchain.toolkit({"CUDA_HOME": str(old), "PATH": ""}, tmp_path) == new
    assert toolchain.toolkit({"CUDA_HOME": str(old), "PATH": ""}, NOWHERE) is None
    assert toolchain.defect(old) == f"{old} is not of CUDA 13"


def test_a_script_that_calls_nvcc_elsewhere_is_not_believed(tmp_path: Path) -> None:
    script = tmp_path / "bin" / "nvcc"
    script.parent.mkdir()
    script.write_text('#!/bin/sh\nexec /opt/cuda/bin/nvcc "$@"\n')
    script.chmod(0o755)
    environ = {"PATH": str(script.parent)}
    assert toolchain.toolkit(environ, NOWHERE) is None
    assert f"({tmp_path} has no nvvm/bin/cicc)" in toolchain.missing(environ, NOWHERE)[0]


@pytest.mark.parametrize("part", toolchain.PARTS)
def test_a_toolkit_lacks_no_part(part: str, tmp_path: Path) -> None:
    folder = write_toolkit(tmp_path)
    assert toolchain.defect(folder) is None
    (folder / part).unlink()
    assert toolchain.defect(folder) == f"{folder} has no {part}"


# --- what an engine is started with ---


def test_engines_share_a_folder_of_kernels(tmp_path: Path) -> None:
    found = toolchain.environment(
        {"HOME": "/elsewhere", "PATH": "/usr/bin", "SGLANG_CACHE_DIR": "~/k"}, NOWHERE
    )
    assert found["SGLANG_CACHE_DIR"] == str(Path.home() / "k")
    assert found["SGLANG_JIT_CACHE_DIR"] == str(Path.home() / "k" / "jit")
    own = toolchain.environment({"PATH": "", "SGLANG_JIT_CACHE_DIR": str(tmp_path)}, NOWHERE)
    assert own["SGLANG_JIT_CACHE_DIR"] == str(tmp_path)


def test_an_engine_gets_the_toolkit_and_the_programs_of_its_python(tmp_path: Path) -> None:
    home = write_toolkit(tmp_path / "cuda")
    found = toolchain.environment({"PATH": "/usr/bin"}, tmp_path)
    programs = [f"{home}/bin", str(Path(sys.executable).parent), "/usr/bin"]
    assert found["CUDA_HOME"] == str(home)
    assert found["PATH"] == os.pathsep.join(programs)
    assert "CUDA_HOME" not in toolchain.environment({"PATH": ""}, NOWHERE)


def test_only_an_engine_on_a_gpu_gets_compilers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = write_toolkit(tmp_path / "cuda")
    monkeypatch.setenv("CUDA_HOME", str(home))
    monkeypatch.setenv("SGLANG_CACHE_DIR", str(tmp_path / "kernels"))
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\necho "kernels go to $SGLANG_JIT_CACHE_DIR, $PATH"\n'
        'echo "allocator ${PYTORCH_CUDA_ALLOC_CONF-as by default} ${PYTORCH_ALLOC_CONF-and so}"\n'
    )
    python.chmod(0o755)
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.setenv(name, "expandable_segments:True")
    monkeypatch.setattr(sys, "executable", str(python))
    for gpu in (True, False):
        monkeypatch.delenv("SGLANG_JIT_CACHE_DIR", raising=False)
        engine = EngineProcess(
            Settings("/model", "bfloat16", "student", 16, 0, 15, 8, gpu, None, 64, 4, False)
        )
        with pytest.raises(EngineLost) as lost:
            engine.start()
        assert (f"kernels go to {tmp_path}/kernels/jit, {home}/bin:" in str(lost.value)) is gpu
        # A cluster's profile may set these for trainers. With them the engine keeps its cache.
        assert ("allocator as by default and so" in str(lost.value)) is gpu
    assert os.environ["PYTORCH_ALLOC_CONF"] == "expandable_segments:True", "kept for trainers"


def test_an_engines_start_has_the_experiments_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 600\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(module, "attention_backend", lambda *_: None)
    (tmp_path / "config.json").write_text('{"vocab_size": 151936}')
    setup, runtime = load_setup("qwen3-0.6b"), Runtime(engine_start_s=0.5)
    folder = ModelFolder(str(tmp_path))
    engine = EngineProcess(module.settings(Job(setup, runtime, folder), "student"))
    with pytest.raises(EngineLost, match="the SGLang engine has been silent for 0 s"):
        engine.start()


# --- CUDA's libraries ---

LOADER = Path("/lib64/ld-linux-x86-64.so.2")
WITH_GCC = pytest.mark.skipif(
    shutil.which("gcc") is None or not LOADER.exists(), reason="no gcc, or not Linux on x86-64"
)


def build(library: Path, *needed: Path) -> Path:
    """An empty library that needs others and names no folder for them, as torch_memory_saver's."""
    library.parent.mkdir(parents=True, exist_ok=True)
    source = library.parent / "nothing.c"
    source.touch()
    command = ["gcc", "-shared", "-fPIC", f"-Wl,--no-as-needed,-soname,{library.name}"]
    command += ["-o", library, source, *needed]
    subprocess.run(command, check=True)
    return library


def preload(hook: Path, folders: list[str]) -> subprocess.CompletedProcess[str]:
    """Start Python with a preloaded library on a machine that has CUDA nowhere but in `folders`."""
    # A system's CUDA is in the loader's cache, which is not asked.
    command = [LOADER, "--inhibit-cache", "--library-path", os.pathsep.join(folders)]
    command += ["--preload", hook, os.path.realpath(sys.executable), "-c", "1"]
    return subprocess.run(command, env={}, capture_output=True, text=True, check=False)


def added_folders() -> list[str]:
    found = toolchain.environment({"PATH": ""}, NOWHERE).get("LD_LIBRARY_PATH")
    return [] if found is None else found.split(os.pathsep)


@WITH_GCC
def test_a_preloaded_library_finds_the_runtime_of_nvidias_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = build(tmp_path / "site" / "nvidia" / "cu13" / "lib" / "libcudart.so.13")
    driver = build(tmp_path / "driver" / "libcuda.so.1")
    hook = build(tmp_path / "hook.so", runtime, driver)
    assert preload(hook, [str(driver.parent)]).returncode == 127
    about = tmp_path / "site" / "made_runtime-13.0.96.dist-info" / "METADATA"
    about.parent.mkdir()
    about.write_text("Name: made-runtime\nVersion: 13.0.96\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr(toolchain, "RUNTIME", "made-runtime")
    done = preload(hook, [*added_folders(), str(driver.parent)])
    assert (done.returncode, done.stderr) == (0, "")


@WITH_GCC
@pytest.mark.engines
def test_the_library_of_torch_memory_saver_finds_its_runtime(tmp_path: Path) -> None:
    try:
        saver = importlib.metadata.distribution("torch-memory-saver")
        importlib.metadata.distribution(toolchain.RUNTIME)
    except importlib.metadata.PackageNotFoundError as missing:
        pytest.skip(f"{missing.name} is not installed: make setup-engines TORCH=cuda")
    hook = Path(str(saver.locate_file("torch_memory_saver_hook_mode_preload_cu13.abi3.so")))
    driver = build(tmp_path / "libcuda.so.1")
    assert preload(hook, [str(driver.parent)]).returncode == 127
    done = preload(hook, [*added_folders(), str(driver.parent)])
    assert (done.returncode, done.stderr) == (0, "")


def test_the_runtimes_folder_comes_before_the_users_and_after_none(tmp_path: Path) -> None:
    home = write_toolkit(tmp_path / "cuda")
    assert "LD_LIBRARY_PATH" not in toolchain.environment({"PATH": ""}, tmp_path)
    (home / "lib64" / "libcudart.so.13").touch()
    found = toolchain.environment({"PATH": "", "LD_LIBRARY_PATH": "/opt/cuda-12/lib"}, tmp_path)
    assert found["LD_LIBRARY_PATH"] == f"{home}/lib64:/opt/cuda-12/lib"


# --- what is missing ---


def test_each_missing_thing_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (tmp_path / "file").touch()
    lines = toolchain.missing(
        {"PATH": str(tmp_path), "SGLANG_CACHE_DIR": str(tmp_path / "file" / "k")}, NOWHERE
    )
    starts = [
        "nvcc of CUDA 13: ",
        "a C++20 compiler (c++): ",
        "a C compiler (gcc): ",
        f"{tmp_path}/Python.h: ",
        "ninja: ",
    ]
    assert [line[: len(start)] for line, start in zip(lines, starts, strict=False)] == starts
    assert lines[len(starts) :] == [
        f"a folder for kernels that can be written to, not {tmp_path}/file/k: set SGLANG_CACHE_DIR"
    ]
    assert "apt-get install python3." in lines[3]


@pytest.mark.parametrize("status", [0, 1])
def test_a_compiler_shows_what_it_knows(status: int, tmp_path: Path) -> None:
    compiler = tmp_path / "g++-8"
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *-std=c++20*) exit {status};; esac\nexit 2\n')
    compiler.chmod(0o755)
    environ = {"PATH": str(tmp_path), "CXX": "g++-8"}
    assert toolchain.knows_cpp20("g++-8", environ) is (status == 0)
    lacking = [
        line
        for line in toolchain.missing(environ, NOWHERE)
        if line.startswith("a C++20 compiler (g++-8)")
    ]
    assert len(lacking) == status


# --- a kernel ---

# The one that every decoding step of SGLang 0.5.20 calls, for an H100; nvcc needs none to build it.
BUILD = """
import torch
from orchestrator.engines.sglang import private
private.prepare()
from sglang.kernels.jit.utils.arch import override_jit_cuda_arch
from sglang.kernels.ops.attention.clamp_position import _jit_clamp_position_module
with override_jit_cuda_arch(9, 0):
    assert hasattr(_jit_clamp_position_module(torch.int64), "clamp_position")
"""


@pytest.mark.engines
def test_nvcc_from_the_lock_builds_a_kernel_of_sglang(tmp_path: Path) -> None:
    skip_without("sglang")
    try:
        importlib.metadata.distribution(toolchain.WHEEL)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("nvcc of the lock is not installed: make test-compiler")
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("CUDA", "SGLANG"))
    }
    environ = kept | {
        "SGLANG_CACHE_DIR": str(tmp_path),
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
    }
    assert toolchain.missing(environ, NOWHERE) == []
    found = toolchain.environment(environ, NOWHERE)
    home = Path(found["CUDA_HOME"] or "")
    assert "site-packages" in home.parts
    # torch's build for GPUs has loaded CUDA's runtime before a kernel asks for it; its build for
    # CPUs has not.
    assert found["LD_LIBRARY_PATH"] == str(home / "lib")
    environ |= {name: value for name, value in found.items() if value is not None}
    done = subprocess.run(
        [sys.executable, "-c", BUILD], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (kernel,) = (tmp_path / "jit" / "sm90a").rglob("*.so")
    assert b"sm_90a" in kernel.read_bytes()
    read = (kernel.parent / "cuda_0.o.d").read_text().replace("\\\n", " ").split()
    assert str(home / "include" / "cuda_runtime.h") in map(os.path.normpath, read)
    assert [header for header in read if header.startswith("/usr/local/cuda")] == []
