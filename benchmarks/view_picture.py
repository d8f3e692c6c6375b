"""The picture of `trb view` in the README: `python -m benchmarks.view_picture EXP RUNS OUT.svg [KEY …]`.

It opens a finished sweep, waits for its intervals, presses the keys and writes the screen as SVG.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from textual.widgets import Static

from orchestrator.selection.loading import load_study
from orchestrator.view.app import ViewApp

SIZE = (110, 20)
SETTLING_S = 1.0  # for what a key starts to read


async def screen(experiment: str, runs: Path, keys: list[str]) -> str:
    """The screen as SVG, once intervals are there and the keys were pressed."""
    app = ViewApp(load_study(experiment, runs=runs))
    async with app.run_test(size=SIZE) as pilot:
        while "best of" not in str(app.query_one("#evidence", Static).content):
            await pilot.pause(0.1)
        for key in keys:
            await pilot.press(key)
            await pilot.pause(SETTLING_S)
        return app.export_screenshot(title=f"trb view {experiment}")


def main() -> None:
    """Write the picture that the command line asks for."""
    experiment, runs, out, *keys = sys.argv[1:]
    picture = asyncio.run(screen(experiment, Path(runs), keys))
    # The font would come from elsewhere; every machine has one of this kind.
    start = picture.index("@font-face")
    end = picture.rindex("}", start, picture.index(".terminal", start)) + 1
    plain = picture[:start] + picture[end:].lstrip()
    Path(out).write_text(plain.replace("Fira Code", "monospace"), encoding="utf-8")
    print(f"{out}: {len(plain):,} characters")


if __name__ == "__main__":
    main()
