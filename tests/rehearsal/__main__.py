"""`python -m tests.rehearsal [SETUP …] [--card NAME] [--json FILE]`: what each role holds, beside
what it is granted.

Ends with status 1 where a role holds more than `engines.budget` grants it, so that a tensor which
does not fit is found without a GPU. Nothing runs on one, and nothing is computed.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

from tests.rehearsal import pretended_cuda

CARDS = ("H100-80GB", "A100-40GB")
PAPER = Path(__file__).parents[2] / "experiments" / "paper.yaml"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.rehearsal", description=__doc__)
    parser.add_argument("setups", nargs="*", help="setups of experiments/paper.yaml (default: all)")
    parser.add_argument("--card", choices=CARDS, action="append", help="a GPU (default: both)")
    parser.add_argument("--json", type=Path, help="where to write all figures")
    options = parser.parse_args()
    pretended_cuda.install()
    from orchestrator.experiment.load import load_experiment
    from tests.rehearsal.cases import Case, rehearse

    setups = load_experiment(PAPER, []).setups
    rows: list[Case] = []
    for card in options.card or CARDS:
        for name in options.setups or setups:
            for row in rehearse(name, replace(setups[name], title=name), card):
                rows.append(row)
                print(row, flush=True)
    if options.json:
        text = json.dumps([asdict(row) | {"fits": row.fits} for row in rows], indent=2)
        options.json.write_text(text + "\n", encoding="utf-8")
    return 0 if all(row.fits for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
