"""Streams without some of our characters get others that say the same."""

from __future__ import annotations

import io
import os
import pty

import pytest

from orchestrator.commands.output import suit
from orchestrator.experiment.methods import METHODS, method_label

TEXT = "−0.5 [−2.2, +1.3] ±2.7 · Fixed ε … ← β* ━━── é ∮"


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        ("ascii", "-0.5 [-2.2, +1.3] +/-2.7 * Fixed e ... <- b* ##-- e ?"),
        ("latin-1", "-0.5 [-2.2, +1.3] ±2.7 · Fixed e ... <- b* ##-- é ?"),
        ("utf-8", TEXT),
    ],
)
def test_what_an_encoding_lacks_is_said_in_ascii(encoding: str, expected: str) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    suit(stream)
    stream.write(TEXT)
    stream.flush()
    assert raw.getvalue().decode(encoding) == expected


def test_names_of_methods_keep_their_length_in_ascii() -> None:
    """Columns would move, and a live view would wrap."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    suit(stream)
    names = [method_label(key) for key in METHODS]
    stream.write("\n".join(names))
    stream.flush()
    assert list(map(len, raw.getvalue().decode().splitlines())) == list(map(len, names))


@pytest.mark.parametrize(("locale", "expected"), [("C", b"-0.5"), ("C.UTF-8", "−0.5".encode())])
def test_a_terminal_under_the_c_locale_gets_ascii(
    locale: str, expected: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python itself writes UTF-8 under either."""
    monkeypatch.setenv("LC_ALL", locale)
    for name in ("PYTHONIOENCODING", "PYTHONUTF8"):
        monkeypatch.delenv(name, raising=False)
    master, terminal = pty.openpty()
    with open(terminal, "w", encoding="utf-8") as stream:
        suit(stream)
        stream.write("−0.5")
        stream.flush()
        assert os.read(master, 100) == expected
    os.close(master)
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="utf-8")
    suit(file)
    file.write("−0.5")
    file.flush()
    assert raw.getvalue() == "−0.5".encode(), "a file keeps its UTF-8"
