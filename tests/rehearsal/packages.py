"""Packages that are not here: those of `docker/lock/kernels.txt` are replaced, and what else is
missed is kept.
"""

from __future__ import annotations

import re
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

from tests.sweeps import ROOT

KERNELS = ROOT / "docker" / "lock" / "kernels.txt"
# Modules of the distributions in kernels.txt that are not called like them. Those of nvidia-* bring
# libraries alone.
MODULES = {
    "cuda-core": "cuda",
    "cuda-python": "cuda",
    "cuda-tile": "cuda",
    "flashinfer-python": "flashinfer",
    "nccl4py": "nccl",
    "nvidia-cudnn-frontend": "cudnn",
    "nvidia-cutlass-dsl": "cutlass",
    "sglang-kernel": "sgl_kernel",
}


class Replaced(MetaPathFinder, Loader):
    """Finds the modules of some packages, with every name that is asked of them."""

    def __init__(self, packages: set[str]):
        self._packages = packages

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return (
            ModuleSpec(name, self, is_package=True)
            if name.split(".")[0] in self._packages
            else None
        )

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Anything(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class Anything(ModuleType):
    """A module that has every name: a class where it begins with a capital, else a module that can
    be called.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = AnyClass(name, (), {}) if name[0].isupper() else Anything(f"{self.__name__}.{name}")
        setattr(self, name, found)
        return found

    def __call__(self, *_: Any, **__: Any) -> Any:
        return MagicMock(name=self.__name__)


class AnyClass(type):
    """A class that has every name: members of enumerations."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=f"{cls.__name__}.{name}")


class Missing(MetaPathFinder):
    """Finds nothing, and keeps which packages SGLang or we looked for in vain. It has to be asked
    last.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if path is None and name not in sys.stdlib_module_names:
            frame = sys._getframe(1)
            while frame is not None and "importlib" in frame.f_code.co_filename:
                frame = frame.f_back
            asked_by = "" if frame is None else frame.f_code.co_filename
            if "/sglang/" in asked_by or "/orchestrator/" in asked_by:
                self.names.add(name)


def packages_of_kernels() -> set[str]:
    """The top-level modules of the distributions in kernels.txt."""
    names: list[str] = re.findall(
        r"^([a-z0-9-]+)==", KERNELS.read_text(encoding="utf-8"), re.MULTILINE
    )
    with_modules = [name for name in names if name in MODULES or not name.startswith("nvidia-")]
    return {MODULES.get(name, name.replace("-", "_")) for name in with_modules}
