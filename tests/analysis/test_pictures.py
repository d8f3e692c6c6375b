"""From run directories to the files of `trb figures`: what can be drawn is, and the rest is
explained.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from analysis import results
from analysis.figures.catalog import pictures
from analysis.figures.picture import Picture
from analysis.table import build
from orchestrator.cli import main
from orchestrator.config import Experiment
from orchestrator.experiment.units import Unit
from orchestrator.records.writer import RunWriter
from orchestrator.selection.study import Study
from tests.analysis.test_figures import panel_title
from tests.fake_runs import QUICKSTART, quickstart, units_of, write_run

Loaded = tuple[Experiment, list[Unit]]
KINDS = (
    "trajectories",
    "cost",
    "entropy",
    "sweep",
    "tradeoff",
    "diagnostics",
    "continuation",
    "overview",
)


@pytest.fixture(scope="module")
def one_seed() -> Loaded:
    return quickstart()


def found(loaded: Loaded, runs: Path) -> dict[str, Picture]:
    drawn = list(pictures(Study(*loaded, runs)))
    assert [picture.name for picture in drawn] == [f"{kind}-arithmetic" for kind in KINDS]
    assert all((picture.figure is None) == bool(picture.missing) for picture in drawn)
    return {picture.name.removesuffix("-arithmetic"): picture for picture in drawn}


def write_steps(runs: Path, unit: Unit, blended: int = 0, replaced: bool = False) -> None:
    """Thirty steps with two rollouts each; the first `blended` log what a trust region does."""
    rows = [
        {"step": step, "teacher_entropy": 0.1, "reward": 0.5, "response_length": 20.0}
        | ({"beta": 0.3, "acceptance": 0.9} if step < blended else {})
        | ({"replaced": 0.01, "acceptance": 0.99} if replaced else {})
        for step in range(30)
    ]
    rollouts = [
        {
            "step": step,
            "reward": reward,
            "log_ratio": reward - 1,
            "teacher_log_prob": -0.5,
            "length": 9,
        }
        for step in range(30)
        for reward in (0.0, 1.0)
    ]
    with closing(RunWriter(runs, unit.id)) as run:
        run.append("metrics.jsonl", rows)
        run.append("rollouts.jsonl", rollouts)
        run.commit(30)


def test_nothing_is_drawn_of_nothing(tmp_path: Path, one_seed: Loaded) -> None:
    drawn = found(one_seed, tmp_path)
    assert [picture.figure for picture in drawn.values()] == [None] * len(KINDS)
    assert "trb probe continuation" in drawn["continuation"].missing


def test_scores_alone_give_trajectories_and_the_sweep(tmp_path: Path, one_seed: Loaded) -> None:
    experiment, units = one_seed
    low, high = units_of(units, "trust_region")
    write_run(tmp_path, experiment, low, {20: [1, 1]})
    write_run(tmp_path, experiment, high, {20: [2, 2]})
    write_run(tmp_path, experiment, units_of(units, "vanilla")[0], {20: [1, 2]})
    drawn = found(one_seed, tmp_path)
    assert {kind for kind, picture in drawn.items() if picture.figure} == {"trajectories", "sweep"}
    figure = drawn["trajectories"].figure
    assert figure is not None
    shown = [line.get_label() for line in figure.axes[0].get_lines()]
    assert shown == [
        "Vanilla",
        r"TRB $\varepsilon_0$=0.05, $K$=12",
    ]  # the best of its family, not every run


def test_steps_alone_give_what_needs_no_scores(tmp_path: Path, one_seed: Loaded) -> None:
    write_steps(tmp_path, units_of(one_seed[1], "vanilla")[0])
    drawn = found(one_seed, tmp_path)
    assert {kind for kind, picture in drawn.items() if picture.figure} == {
        "entropy",
        "tradeoff",
        "diagnostics",
    }


def test_vanilla_trust_region_and_skd_side_by_side(tmp_path: Path, one_seed: Loaded) -> None:
    vanilla, trust, skd = (
        units_of(one_seed[1], name)[-1] for name in ("vanilla", "trust_region", "skd")
    )
    for unit in (vanilla, trust, skd):
        write_steps(tmp_path, unit, 12 if unit is trust else 0, replaced=unit is skd)
        write_run(tmp_path, one_seed[0], unit, {60: [1, 1]})
    figure = found(one_seed, tmp_path)["diagnostics"].figure
    assert figure is not None
    shown = {panel_title(axes): axes.get_lines() for axes in figure.axes if axes.axison}
    assert {title: len(lines) for title, lines in shown.items()} == {
        r"mean $\beta^*$": 1,
        "acceptance (%)": 1,  # SKD's law is another one
        "tokens replaced (%)": 1,
        "length (tokens)": 2,
        "correct (%)": 2,
    }


def test_the_results_folder_holds_tables_and_figures(tmp_path: Path, one_seed: Loaded) -> None:
    write_run(tmp_path, one_seed[0], units_of(one_seed[1], "vanilla")[0], {20: [1, 2]})
    folder = results.write_results(
        Study(*one_seed, tmp_path), build.results_table(Study(*one_seed, tmp_path))
    )
    names = {path.name for path in folder.iterdir()}
    assert names == {f"table.{kind}" for kind in ("md", "tex", "csv", "json")} | {
        *(f"trajectories-arithmetic.{kind}" for kind in ("png", "pdf")),
        *("experiment.yaml", "trials.csv"),
    }


def test_each_setup_has_its_figures(tmp_path: Path) -> None:
    loaded = quickstart("setups=[arithmetic,math-smoke]", "methods.sft_warmup=null", "data_dir=.")
    unit = next(
        unit for unit in loaded[1] if unit.setup == "math-smoke" and unit.method == "vanilla"
    )
    write_steps(tmp_path, unit)
    drawn = {picture.name for picture in pictures(Study(*loaded, tmp_path)) if picture.figure}
    assert drawn == {f"{kind}-math-smoke" for kind in ("entropy", "tradeoff", "diagnostics")}


# --- the command ---


def run(
    capsys: pytest.CaptureFixture[str], runs: Path, out: Path
) -> tuple[int, list[str], list[str]]:
    with pytest.raises(SystemExit) as ended:
        main(["figures", str(QUICKSTART), "--runs", str(runs), "--out", str(out)])
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out.splitlines(), captured.err.splitlines()


def test_the_command_prints_paths_and_reasons(
    tmp_path: Path, one_seed: Loaded, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "runs", one_seed[0], units_of(one_seed[1], "vanilla")[0], {20: [1, 2]})
    code, printed, reasons = run(capsys, tmp_path / "runs", tmp_path / "out" / "deep")
    assert code == 0
    assert printed == [
        str(tmp_path / "out" / "deep" / f"trajectories-arithmetic.{kind}")
        for kind in ("png", "pdf")
    ]
    assert all(Path(path).stat().st_size > 1000 for path in printed)
    assert [line.split(":")[:2] for line in reasons] == [
        ["not drawn", f" {kind}-arithmetic"] for kind in KINDS[1:]
    ]


def test_figures_say_what_they_rest_on(tmp_path: Path, one_seed: Loaded) -> None:
    write_run(tmp_path, one_seed[0], units_of(one_seed[1], "vanilla")[0], {20: [1, 2]})
    assert found(one_seed, tmp_path)["trajectories"].basis.startswith("One seed each")
    two = quickstart("seeds=[0,1]")
    for unit in units_of(two[1], "vanilla"):
        write_run(tmp_path, two[0], unit, {20: [1, 2]})
    assert found(two, tmp_path)["trajectories"].basis.startswith("Means over 2 seeds")


def test_a_width_outside_the_page_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "figures",
                str(QUICKSTART),
                "--runs",
                str(tmp_path),
                "--out",
                str(tmp_path / "out"),
                "--width",
                "0.5",
            ]
        )
    assert (ended.value.code, capsys.readouterr().err) == (
        2,
        "trb: --width: 0.5: expected inches from 3 to 12\n",
    )


def test_nothing_to_draw_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs").mkdir()
    code, printed, reasons = run(capsys, tmp_path / "runs", tmp_path / "out")
    assert (code, printed, len(reasons)) == (2, [], 1)
    assert "trb submit" in reasons[0]
    assert not (tmp_path / "out").exists()
