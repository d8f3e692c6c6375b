"""What the program writes is a promise: its bytes are pinned, so that moving code about changes
none of them.

`golden_bytes.json` holds the sha256 of each output over made-up runs, which are the same on every
machine; `python -m tests.test_golden_bytes` writes it anew. `python -m tests.test_golden_bytes
FILE` trains a tiny sweep and writes the sha256 of all that comes of it to FILE. These differ from
machine to machine and are never committed: make one before a change of the layout and one after it,
and compare.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import sys
import tempfile
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.commands import plan
from tests import fake_runs
from tests.sweeps import contents, run_sweep, trb

GOLDEN = Path(__file__).with_name("golden_bytes.json")
METHODS = {
    "vanilla": {},
    "trust_region": {"epsilon0": [0.05], "K": [5]},
    "veto": {"beta_start": [0.4]},
    "skd": {"K": [5], "tau_T": [0.6], "placement": "split"},
    "sft_warmup": {"K": [4]},
}

FORMATS = ("text", "md", "tex", "csv", "json")


def made_up(folder: Path) -> dict[str, str]:
    """Name → sha256 of run directories and outputs over runs that no model made."""
    experiment, units = fake_runs.quickstart("seeds=[0,1]")
    runs = folder / "runs"
    fake_runs.fake_models(experiment, runs)
    units = fake_runs.expand(experiment, runs)
    for position, unit in enumerate(units):
        scores = {
            step: [position % 5, (position + step) % 5]
            for step in ([0] if unit.kind == "base_eval" else [20, 40])
        }
        fake_runs.write_run(
            runs, experiment, unit, {} if unit.kind == "sft" else scores, steps=unit.steps
        )
    overrides = ["evaluation.rescore=false", "seeds=[0,1]"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "cores_here", lambda: 2)  # by which the plan divides its minutes
        return contents(runs) | outputs(folder, [str(fake_runs.QUICKSTART), *overrides])


def trained(folder: Path) -> dict[str, str]:
    """The same over a sweep that is trained here, with figures and split roles."""
    sweep = run_sweep(folder, METHODS)
    found = contents(sweep.runs) | outputs(folder, [str(sweep.experiment)])
    assert (
        trb(
            "figures", sweep.experiment, "--runs", sweep.runs, "--out", folder / "figures"
        ).returncode
        == 0
    )
    return found | {
        f"figures/{file.name}": digest(file.read_bytes())
        for file in sorted((folder / "figures").iterdir())
    }


def outputs(folder: Path, experiment: list[str]) -> dict[str, str]:
    """Name → sha256 of what commands print about the runs in `folder`, which they are told by a
    relative path.
    """
    commands = {f"table.{form}": ["table", *experiment, "--format", form] for form in FORMATS}
    commands |= {
        "compare.md": ["table", *experiment, "--format", "md", "--compare", "TRB,Vanilla"],
        "status.json": ["status", *experiment, "--json"],
        "plan.json": ["plan", *experiment, "--json"],
    }
    found = {}
    for name, command in commands.items():
        shown = io.StringIO()
        with (
            contextlib.chdir(folder),
            contextlib.redirect_stdout(shown),
            pytest.raises(SystemExit) as ended,
        ):
            main([*command, "--runs", "runs"])
        assert ended.value.code == 0, command
        text = (
            shown.getvalue()
            .replace(str(folder), "FOLDER")
            .replace(str(fake_runs.QUICKSTART), "QUICKSTART")
        )
        found[name] = digest(text.encode())
    return found


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_outputs_over_made_up_runs_are_pinned(tmp_path: Path) -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    found = made_up(tmp_path)
    differing = sorted(
        name for name in golden.keys() | found.keys() if golden.get(name) != found.get(name)
    )
    assert not differing, "see the docstring of this file"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        found = trained(Path(scratch)) if sys.argv[1:] else made_up(Path(scratch))
    Path(sys.argv[1] if sys.argv[1:] else GOLDEN).write_text(
        json.dumps(found, indent=1) + "\n", encoding="utf-8"
    )
