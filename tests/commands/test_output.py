"""A stream without some of our characters takes every text."""

from __future__ import annotations

import subprocess
import sys

from tests.sweeps import ROOT, environment


def test_an_encoding_that_lacks_characters_ends_no_command() -> None:
    command = [sys.executable, "-c", "from orchestrator.cli import main; main(['config', 'lr'])"]
    environ = environment() | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "lr = ?" in done.stdout.decode("ascii")  # it has no default, which is said by —
