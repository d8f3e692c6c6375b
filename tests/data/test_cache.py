"""Expensive results: made once, whole or not at all."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.data.cache import cached, is_cached


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "trb"


def test_one_makes_it_while_the_others_wait() -> None:
    made = []

    def make() -> str:
        made.append(time.monotonic())
        time.sleep(0.2)
        return "größer\n"

    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(lambda _: cached("result.json", make), range(4)))
    assert texts == ["größer\n"] * 4
    assert len(made) == 1
    assert is_cached("result.json")


def test_what_fails_leaves_nothing_and_is_made_by_the_next(folder: Path) -> None:
    def fail() -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached("result.json", fail)
    assert not is_cached("result.json")
    assert cached("result.json", lambda: "text") == "text"
    assert sorted(path.name for path in folder.iterdir()) == [".result.json.lock", "result.json"]
