"""Checks the compilers with which an engine builds kernels while it runs. Loads no torch."""

from __future__ import annotations

import os

from orchestrator.engines.catalog import ENGINES
from orchestrator.engines.device import has_driver
from orchestrator.engines.sglang import toolchain
from orchestrator.selftest.bench import Bench
from orchestrator.selftest.runner import Found


def compilers(bench: Bench) -> Found:
    """Check the compilers that the setup's sampler needs, if this machine has a GPU."""
    name = bench.setup.engine.sampler
    if not ENGINES[name].tools:
        return Found("skipped", f"{name} samples, which compiles nothing")
    found = compilers_here()
    if found.verdict == "fail" and not has_driver():
        return Found("skipped", f"nothing is compiled without a GPU; {found.detail}")
    return found


def compilers_here() -> Found:
    """Check this machine's compilers of kernels."""
    lines = toolchain.missing(os.environ)
    if not lines:
        home, kernels = toolchain.toolkit(os.environ), toolchain.kernel_cache(os.environ)
        return Found("ok", f"nvcc of {home}; compiled kernels are kept in {kernels}")
    lacking: list[str] = []
    remedies: list[str] = []
    for line in lines:
        tool, _, remedy = line.rpartition(": ")
        lacking.append(tool)
        remedies.append(remedy)
    return Found("fail", f"an engine on a GPU would lack {'; '.join(lacking)}", "; ".join(remedies))
