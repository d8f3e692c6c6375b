"""The order of the tests: first what takes long in one process, so that the others can go on beside
it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orchestrator.start_up import quick_imports

# Folders whose files take ten seconds and more: they come before the many that take one, so that no
# process waits long for another at the end.
LONG = ("engines/common", "engines/torch", "analysis", "tracking")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with Ray clusters, one after the other, and those of other groups start before all
    others.

    The tests of a file are a group where they name none: what they share is then made in one
    process, not in each.
    """

    def order(item: pytest.Item) -> tuple[bool, bool, bool]:
        long = item.path.parent.as_posix().endswith(LONG)
        return (
            item.get_closest_marker("ray") is None,
            item.get_closest_marker("xdist_group") is None,
            not long,
        )

    items.sort(key=order)
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Collecting imports all that is tested."""
    with quick_imports():
        return (yield)


@pytest.fixture(autouse=True)
def _gpus_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial hides the GPUs from its process where it asked for none; the tests after it share
    that process.
    """
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
