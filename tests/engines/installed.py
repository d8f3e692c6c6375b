"""Tests of engines that the default install does not hold."""

from __future__ import annotations

import importlib.util

import pytest


def skip_without(package: str) -> None:
    """Skip the running test where a package is not installed. It is not imported: that is for an
    engine's processes.
    """
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: make setup-engines")
