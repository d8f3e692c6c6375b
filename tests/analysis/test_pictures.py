"""From run directories to the files of `trb figures`: what can be drawn is, and the rest is
explained.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from analysis import results
from analysis.facts.curves import WantedSetting
from analysis.facts.facts import facts
from analysis.figures import picture as saving
from analysis.figures.catalog import pictures
from analysis.figures.picture import Picture
from analysis.table.formats import to_csv
from analysis.table.model import results_table
from orchestrator.commands.report import _wanted_setting
from orchestrator.config import Experiment
from orchestrator.experiment.evaluation_protocol import fresh_evaluation_ids
from orchestrator.experiment.units import Unit, expand
from orchestrator.records.rundir import RunReader
from orchestrator.records.writer import RunWriter
from orchestrator.selection.confirmation import with_confirmation
from orchestrator.selection.study import Study
from tests.analysis.logged_runs import log_steps
from tests.analysis.test_figures import panel_title
from tests.fake_runs import QUICKSTART, quickstart, record, units_of, write_evaluation, write_run
from tests.sweeps import trb_here

Loaded = tuple[Experiment, list[Unit]]
KINDS = (
    *("trajectories", "distance", "cost", "entropy", "sweep", "tradeoff", "diagnostics"),
    *("continuation", "overview"),
)


@pytest.fixture(scope="module")
def one_seed() -> Loaded:
    return quickstart()


def by_kind(loaded: Loaded, runs: Path) -> dict[str, Picture]:
    found = {}
    for picture in pictures(facts(Study(*loaded, runs))):
        assert (picture.figure is None) == bool(picture.missing)
        found[picture.name.removesuffix("-arithmetic")] = picture
    assert tuple(found) == KINDS
    return found


def drawn(loaded: Loaded, runs: Path) -> set[str]:
    return {kind for kind, picture in by_kind(loaded, runs).items() if picture.figure}


def write_steps(runs: Path, unit: Unit, blended: int = 0, **extra: float) -> None:
    with closing(RunWriter(runs, unit.id)) as run:
        log_steps(run, 30, blended, **extra)


def test_nothing_is_drawn_of_nothing(tmp_path: Path, one_seed: Loaded) -> None:
    assert drawn(one_seed, tmp_path) == set()
    assert "trb probe continuation" in by_kind(one_seed, tmp_path)["continuation"].missing


def test_scores_alone_give_trajectories_and_the_sweep(tmp_path: Path, one_seed: Loaded) -> None:
    experiment, units = one_seed
    low, high = units_of(units, "trust_region")
    write_run(tmp_path, experiment, low, {20: [1, 1]})
    write_run(tmp_path, experiment, high, {20: [2, 2]})
    write_run(tmp_path, experiment, units_of(units, "vanilla")[0], {20: [1, 2]})
    assert drawn(one_seed, tmp_path) == {"trajectories", "sweep"}
    figure = by_kind(one_seed, tmp_path)["trajectories"].figure
    assert figure is not None
    # The best of its family is shown, not every run.
    shown = [line.get_label() for line in figure.axes[0].get_lines()]
    assert shown == ["Vanilla", r"TRB $\varepsilon_0$=0.05, $K$=12"]


def test_rates_of_vanilla_have_a_panel_and_the_dashed_line_is_its_best(tmp_path: Path) -> None:
    loaded = experiment, units = quickstart(
        "methods.vanilla.axes.training.optimizer.lr=[0.0003,0.0008]"
    )
    low, high = units_of(units, "vanilla")
    write_run(tmp_path, experiment, low, {20: [2, 2]})
    write_run(tmp_path, experiment, high, {20: [1, 1]})
    table = results_table(Study(*loaded, tmp_path))
    [row] = [row for row in table.rows if row.method == "vanilla"]
    assert "lr=0.0003" in to_csv(table)
    assert row.label == "Vanilla"
    figure = by_kind(loaded, tmp_path)["sweep"].figure
    assert figure is not None
    [axes] = figure.axes
    assert (panel_title(axes), axes.get_xlabel()) == ("Vanilla", r"$\eta$")
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0.0003", "0.0008"]
    points, dashed = axes.get_lines()
    assert np.asarray(points.get_ydata()).tolist() == [50, 25]
    assert set(np.asarray(dashed.get_ydata()).tolist()) == {50}


def test_steps_alone_give_what_needs_no_scores(tmp_path: Path, one_seed: Loaded) -> None:
    write_steps(tmp_path, units_of(one_seed[1], "vanilla")[0])
    assert drawn(one_seed, tmp_path) == {"entropy", "tradeoff", "diagnostics"}


def test_vanilla_trust_region_and_skd_side_by_side(tmp_path: Path, one_seed: Loaded) -> None:
    for method, blended in (("vanilla", 0), ("trust_region", 12), ("skd", 30)):
        unit = units_of(one_seed[1], method)[-1]
        write_steps(tmp_path, unit, blended, **({"replaced": 0.01} if method == "skd" else {}))
        write_run(tmp_path, one_seed[0], unit, {60: [1, 1]})
    figure = by_kind(one_seed, tmp_path)["diagnostics"].figure
    assert figure is not None
    shown = {panel_title(axes): len(axes.get_lines()) for axes in figure.axes if axes.axison}
    assert shown == {
        r"mean $\beta^*$": 1,
        "acceptance (%)": 1,  # SKD's law is another one
        "tokens replaced (%)": 1,
        "length (tokens)": 2,
        "correct (%)": 2,
    }


def test_the_results_folder_holds_tables_and_figures(tmp_path: Path, one_seed: Loaded) -> None:
    write_run(tmp_path, one_seed[0], units_of(one_seed[1], "vanilla")[0], {20: [1, 2]})
    study = Study(*one_seed, tmp_path)
    folder = results.write_results(study, results_table(study))
    assert {path.name for path in folder.iterdir()} == {
        *("table.md", "table.tex", "table.csv", "table.json", "trials.csv", "experiment.yaml"),
        *("trajectories-arithmetic.png", "trajectories-arithmetic.pdf"),
    }


def test_each_setup_has_its_figures(tmp_path: Path) -> None:
    loaded = quickstart("setups=[arithmetic,math-smoke]", "methods.sft_warmup=null", "data_dir=.")
    units = [unit for unit in loaded[1] if unit.setup == "math-smoke"]
    write_steps(tmp_path, units_of(units, "vanilla")[0])
    names = {
        picture.name for picture in pictures(facts(Study(*loaded, tmp_path))) if picture.figure
    }
    assert names == {f"{kind}-math-smoke" for kind in ("entropy", "tradeoff", "diagnostics")}


def test_figures_say_what_they_rest_on(tmp_path: Path, one_seed: Loaded) -> None:
    write_run(tmp_path, one_seed[0], units_of(one_seed[1], "vanilla")[0], {20: [1, 2]})
    assert by_kind(one_seed, tmp_path)["trajectories"].basis.startswith("One seed each")
    two = quickstart("seeds=[0,1]")
    for unit in units_of(two[1], "vanilla"):
        write_run(tmp_path, two[0], unit, {20: [1, 2]})
    assert by_kind(two, tmp_path)["trajectories"].basis.startswith("Means over 2 seeds")


# --- the command ---


def run(
    capsys: pytest.CaptureFixture[str], folder: Path, *options: str
) -> tuple[object, list[str], list[str]]:
    """Exit code and lines of `trb figures`, over the folder's runs and into its `out/deep`."""
    places = ["--runs", str(folder / "runs"), "--out", str(folder / "out" / "deep")]
    code, out, err = trb_here(capsys, "figures", QUICKSTART, *places, *options)
    return code, out.splitlines(), err.splitlines()


def test_the_command_prints_paths_and_reasons(
    tmp_path: Path, one_seed: Loaded, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "runs", one_seed[0], units_of(one_seed[1], "vanilla")[0], {20: [1, 2]})
    code, printed, reasons = run(capsys, tmp_path)
    path = tmp_path / "out" / "deep" / "trajectories-arithmetic"
    assert (code, printed) == (0, [f"{path}.png", f"{path}.pdf"])
    assert all(Path(line).stat().st_size > 1000 for line in printed)
    named = [line.split(":")[:2] for line in reasons]
    assert named == [["not drawn", f" {kind}-arithmetic"] for kind in KINDS[1:]]


def legends(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    *settings: str,
) -> list[str]:
    """The legend of the trajectories that `trb figures` draws with these values of --setting."""
    drawn: dict[str, Figure] = {}
    monkeypatch.setattr(saving, "save", lambda figure, _, name: drawn.update({name: figure}) or [])
    run(capsys, folder, *(word for text in settings for word in ("--setting", text)))
    legend = drawn["trajectories-arithmetic"].legends[0]
    return [text.get_text() for text in legend.get_texts()]


def test_trajectories_of_chosen_settings(
    tmp_path: Path,
    one_seed: Loaded,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worse of two settings takes the place of the selected one, or both stand there."""
    experiment, units = one_seed
    low, high = units_of(units, "trust_region")
    write_run(tmp_path / "runs", experiment, low, {20: [1, 1]})
    write_run(tmp_path / "runs", experiment, high, {20: [2, 2]})
    write_run(tmp_path / "runs", experiment, units_of(units, "vanilla")[0], {20: [1, 2]})
    shown = partial(legends, capsys, monkeypatch, tmp_path)
    one, other = (
        rf"TRB $\varepsilon_0$={unit.knobs['epsilon0']:g}, $K$=12" for unit in (low, high)
    )
    assert shown() == ["Vanilla", other]
    assert shown(f"TRB:epsilon0={low.knobs['epsilon0']}") == ["Vanilla", one]
    assert shown("trust_region:K=12") == ["Vanilla", one, other]


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("TRBB:K=12", "--setting: 'TRBB': expected one of "),
        ("TRB:k=12", "--setting trust_region: 'k': expected one of epsilon0, K"),
        ("TRB:K=13", "--setting trust_region:K: '13': expected a value of the experiment: 12"),
        ("TRB:K=true", "--setting trust_region:K: 'true': expected a value of the experiment: 12"),
        ("TRB:K", "--setting trust_region:K: '': expected a value of the experiment: 12"),
    ],
)
def test_a_setting_that_the_experiment_lacks_is_one_line(
    setting: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").mkdir()
    code, printed, reasons = run(capsys, tmp_path, "--setting", setting)
    assert (code, printed, len(reasons)) == (2, [], 1)
    assert line in reasons[0]


def test_a_setting_of_an_axis_is_named_by_its_last_word() -> None:
    axes = "methods.vanilla.axes={training.optimizer.lr: [1e-4, 4e-4], training.objective: [tail]}"
    grids = quickstart(axes)[0].methods
    assert _wanted_setting("Vanilla:lr=1e-4,objective=tail", grids) == WantedSetting(
        "vanilla", {"training.optimizer.lr": 1e-4, "training.objective": "tail"}
    )


def test_the_heat_map_takes_any_two_axes(tmp_path: Path) -> None:
    axes_ = "axes={training.optimizer.lr: [1e-4, 2e-4], training.objective: [full, renormalized]}"
    loaded = quickstart("methods.trust_region={epsilon0: [0.05], K: [12]}", axes_)
    for unit in units_of(loaded[1], "trust_region"):
        right = 3 if unit.knobs["training.objective"] == "full" else 1
        write_run(tmp_path, loaded[0], unit, {20: [right, right]})
    found = {each.name: each for each in pictures(facts(Study(*loaded, tmp_path)))}
    figure = found["heatmap-arithmetic"].figure
    assert figure is not None
    (axes,) = figure.axes
    labels = [text.get_text() for text in (*axes.get_xticklabels(), *axes.get_yticklabels())]
    assert sorted(labels) == ["0.0001", "0.0002", "full", "renormalized"]
    assert sorted(text.get_text() for text in axes.texts) == ["25.0", "25.0", "75.0", "75.0"]


def test_the_points_of_a_search_have_a_panel_for_each_number_and_no_heat_map(
    tmp_path: Path,
) -> None:
    """Points that the search stopped are among them."""
    loaded = quickstart(
        "methods.trust_region={epsilon0: {log: [0.01, 1.0]}, K: [6, 12]}",
        "axes={training.objective: [full, renormalized]}",
        "search={kind: halving, trials: 6, reduction: 3}",
    )
    every = loaded[0].setups["arithmetic"].training.checkpoint_every
    for right, unit in enumerate(units_of(loaded[1], "trust_region")):
        write_run(tmp_path, loaded[0], unit, {every: [right % 4] * 2}, steps=every, done=False)
    found = {each.name: each for each in pictures(facts(Study(*loaded, tmp_path)))}
    assert "heatmap-arithmetic" not in found
    figure = found["sweep-arithmetic"].figure
    assert figure is not None
    budgets, warmups = figure.axes[:2]
    drawn = [point for unit in loaded[0].points["trust_region"] for point in [unit["epsilon0"]]]
    shown = [float(line.get_xdata()[0]) for line in budgets.lines]  # pyright: ignore[reportArgumentType, reportIndexIssue]
    assert sorted(shown) == sorted(drawn)
    assert (budgets.get_xscale(), warmups.get_xscale()) == ("log", "linear")


def test_a_grid_of_budgets_and_warmups_has_a_heat_map(tmp_path: Path) -> None:
    """Cells are the best checkpoints of selection, and the lead is over vanilla's best."""
    loaded = quickstart("methods.trust_region={epsilon0: [0.01, 0.05], K: [6, 12]}")
    scores = {(0.01, 6): [1, 1], (0.01, 12): [2, 1], (0.05, 6): [3, 3]}
    write_run(tmp_path, loaded[0], units_of(loaded[1], "vanilla")[0], {20: [1, 2], 40: [2, 2]})
    for unit in units_of(loaded[1], "trust_region"):
        found = scores.get((unit.knobs["epsilon0"], unit.knobs["K"]))
        if found is not None:
            write_run(tmp_path, loaded[0], unit, {20: [0, 0], 40: found})
    names = [picture.name for picture in pictures(facts(Study(*loaded, tmp_path)))]
    assert names[4:6] == ["sweep-arithmetic", "heatmap-arithmetic"]
    picture = list(pictures(facts(Study(*loaded, tmp_path))))[5]
    assert picture.figure is not None
    (axes,) = picture.figure.axes
    cells = {text.get_position(): text.get_text() for text in axes.texts}
    assert cells == {(0, 0): "25.0\n−25.0", (1, 0): "37.5\n−12.5", (0, 1): "75.0\n+25.0"}
    assert picture.basis == "One seed each."


@pytest.mark.parametrize(
    ("options", "words"), [((), ["trb submit"]), (("--width", "0.5"), ["--width", "0.5"])]
)
def test_mistakes_are_one_line(
    options: tuple[str, ...], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").mkdir()
    code, printed, reasons = run(capsys, tmp_path, *options)
    assert (code, printed, len(reasons)) == (2, [], 1)
    assert all(word in reasons[0] for word in words)
    assert not (tmp_path / "out").exists()


# --- many setups ---


def three_setups(*overrides: str) -> Loaded:
    """Vanilla and SKD alone, in three setups of the same models."""
    others = ("fixed_epsilon", "veto", "temperature_warmup", "sft_warmup", "trust_region")
    away = [f"methods.{name}=null" for name in others]
    experiment, _ = quickstart("seeds=[0,1]", *away, *overrides)
    setup = experiment.setups["arithmetic"]
    setups = {name: replace(setup, title=name) for name in ("one", "two", "three")}
    experiment = replace(experiment, setups=setups)
    return experiment, expand(experiment)


def map_of(loaded: Loaded, runs: Path) -> Picture:
    return next(pictures(facts(Study(*loaded, runs))))


def test_three_setups_have_a_map(tmp_path: Path) -> None:
    loaded = three_setups()
    assert map_of(loaded, tmp_path).missing
    scores = {"vanilla": ([1, 1], [1, 2]), "skd": ([4, 4], [3, 4])}
    for unit in loaded[1]:
        if unit.setup == "two" and unit.method in scores:
            write_run(tmp_path, loaded[0], unit, {60: scores[unit.method][unit.seed]})
    picture = map_of(loaded, tmp_path)
    assert picture.name == "map-quickstart"
    assert picture.figure is not None
    cells = [text.get_text() for text in picture.figure.axes[0].texts]
    # 3 3/4 of 4 right answers against 1 1/4, and no row for setups that were not run.
    assert [cell.rstrip("*") for cell in cells] == ["", "31.3", "+62.5"], "no untrained student"
    assert picture.basis.startswith("1 of 3 setups")


def test_a_map_rests_on_confirming_runs(tmp_path: Path) -> None:
    loaded = three_setups("confirm.seeds=[5,6]", "seeds=[0]")
    explored = [unit for unit in loaded[1] if unit.setup == "two" and unit.is_trial]
    for unit in explored:
        write_run(tmp_path, loaded[0], unit, {60: [4, 4]}, steps=unit.steps)
    assert map_of(loaded, tmp_path).missing, "explored scores are no leads"
    study = with_confirmation(Study(*loaded, tmp_path))
    fresh = fresh_evaluation_ids(loaded[0].setups["two"])
    for unit in study.units:
        if unit.id in study.confirming:
            write_run(tmp_path, loaded[0], unit, {60: [None, None]}, steps=unit.steps)
            for evaluation_id in fresh.values():
                right = [record(2 if unit.method == "skd" else 1)]
                write_evaluation(RunReader(tmp_path, unit.id), evaluation_id, 60, right)
    figure = map_of(loaded, tmp_path).figure
    assert figure is not None
    assert [text.get_text() for text in figure.axes[0].texts] == ["", "25.0", "+25.0"]
