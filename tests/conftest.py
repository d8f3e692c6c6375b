"""The order of the tests: first what takes long in one process, so that the others can go on beside it."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with Ray clusters, one after the other, and those of other groups start before all others."""
    items.sort(
        key=lambda item: (item.get_closest_marker("ray") is None, item.get_closest_marker("xdist_group") is None)
    )
