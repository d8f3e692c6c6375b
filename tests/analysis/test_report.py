"""The report: what stands on the page, that it is inert and the same every time, and how a browser
shows it.
"""

from __future__ import annotations

import base64
import csv
import errno
import itertools
import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import pytest

from analysis.facts.costs import family_costs
from analysis.facts.curves import Series, early_means, last_means
from analysis.facts.facts import facts
from analysis.report import background
from analysis.report.page import build_page, write_report
from analysis.table import formats
from analysis.table.compare import compare, explanation, to_markdown
from analysis.table.model import results_table
from orchestrator.config import Experiment
from orchestrator.errors import UserError
from orchestrator.experiment.evaluation_protocol import evaluation_ids, fresh_evaluation_ids
from orchestrator.experiment.probe import DOCUMENTS, LOGS, probe_unit
from orchestrator.experiment.units import Unit
from orchestrator.records.writer import RunWriter
from orchestrator.selection.results_folder import note_submit
from orchestrator.selection.study import Invocation, Study
from tests.analysis.logged_runs import log_steps
from tests.analysis.test_evidence import draw as draw_counts
from tests.analysis.test_evidence import write as write_counts
from tests.browser import Browser, browser
from tests.fake_runs import QUICKSTART, SHIPPED, quickstart, record, units_of, write_evaluation
from tests.sweeps import trb_here, trb_refuses

Loaded = tuple[Experiment, list[Unit]]
SETUP = "arithmetic"
EVIL = "<script>document.title='run'</script><img src=x onerror=\"document.title='run'\">"
METHODS = ("vanilla", "trust_region", "skd")  # of which the made-up sweep has runs
HOST = {"name": "box<1>", "system": "Linux", "machine": "x86_64", "cpu": "Z80", "cores": 8}
PROVENANCE = {
    "commit": "c0ffee",
    "dirty_diff": "+x",
    "versions": {"python": "3.11", "ray": None},
    "host": {**HOST, "gpus": ["H100"] * 2},
}


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return quickstart()


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory, loaded: Loaded) -> Study:
    """Vanilla, one trust region, SKD and the untrained student, evaluated; a probe whose texts are
    hostile.
    """
    experiment, units = loaded
    folder = tmp_path_factory.mktemp("sweep") / "runs"
    write_unit(folder, experiment, units_of(units, "base_eval")[0], 0, 1)
    for method, right in zip(METHODS, (2, 3, 1), strict=True):
        write_unit(folder, experiment, units_of(units, method)[-1], 30, right)
    vanilla = {"text": EVIL, "correct": False, "truncated": False}
    trust = {"text": "so 4 & \\boxed{4}\n" * 90, "correct": True, "truncated": True}
    numbers = {"length": 5, "mean_teacher_log_prob": -0.5}
    sides = {"vanilla": vanilla | numbers, "trust_region": trust | numbers}
    with closing(RunWriter(folder, probe_unit(experiment, SETUP).id, LOGS)) as run:
        run.describe({}, dict)
        run.write_document(DOCUMENTS[1], [{"prompt": f"2+2=? {EVIL}", "gold": "4", **sides}])
        run.commit(1)
        run.finish()
    return Study(experiment, units, folder)


def write_unit(folder: Path, experiment: Experiment, unit: Unit, steps: int, right: int) -> None:
    """`steps` rows, the third timed twice; one evaluated checkpoint of three problems, `right` of
    four correct.
    """
    setup = experiment.setups[unit.setup]
    step = {"phase": "train", "rollout": 0.5, "score": 0.25, "reward": 0.0, "learn": 1.0}
    with closing(RunWriter(folder, unit.id)) as run:
        run.describe({}, lambda: PROVENANCE)
        blended = {"trust_region": 12, "skd": steps}.get(unit.method or "", 0)
        log_steps(run, steps, blended, response_tokens=100, truncated=0.25)
        for number in [*range(steps), 2] if steps else []:
            run.append_timing({"step": number, **step})
        for ids in (evaluation_ids(setup), fresh_evaluation_ids(setup)):
            for key, evaluation_id in ids.items():
                counts = [record(min(4, max(0, right + i)), problem=f"p{i}") for i in (-1, 0, 1)]
                write_evaluation(run, evaluation_id, steps, counts)
                clocked = {"step": steps, "phase": "evaluate", "benchmark": key, "seconds": 2.0}
                run.append_timing(clocked)
        if unit.method == "vanilla":
            copies = {"problems": 2, "of": 9, "used": 1, "example": "1<2?"}
            overlap = {"arithmetic_short": copies}
            run.describe_data({"rows": 12345, "golds": {"given": 7}, "overlap": overlap})
        run.finish()


def start(runs: Path, unit: Unit) -> None:
    with closing(RunWriter(runs, unit.id)) as run:
        run.describe({}, dict)


@pytest.fixture(scope="module")
def page(study: Study) -> Path:
    path = study.runs / "results" / "quickstart" / "report.html"
    for words in (("first.yaml",), ("second.yaml", "seeds=[0, 1]")):
        note_submit(replace(study, invocation=Invocation(words)))
    said: list[str] = []
    write_report(study, path, said.append)
    assert said[0] == "testing the differences between methods"
    assert re.fullmatch(r"drawing \d+ figures", said[1])
    return path


def build(study: Study, path: Path) -> str:
    return build_page(facts(study), path)


@pytest.fixture(scope="module")
def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def root(text: str) -> ElementTree.Element:
    """The page as a tree."""
    return parsed(text)


def parsed(text: str) -> ElementTree.Element:
    """A page as a tree without its scripts; that it is one says that every element is closed."""
    text = re.sub(r"<script[^>]*>.*?</script>", "", text, flags=re.DOTALL)
    return ElementTree.fromstring(
        re.sub(r"<(meta|link|img|source)([^>]*)>", r"<\1\2/>", text.removeprefix("<!doctype html>"))
    )


def texts(root: ElementTree.Element, tag: str, kind: str | None = None) -> list[str]:
    """The texts of all elements of a name, and of a class."""
    found = [node for node in root.iter(tag) if kind is None or node.get("class") == kind]
    return ["".join(node.itertext()) for node in found]


def part(root: ElementTree.Element, key: str) -> ElementTree.Element:
    """One section of the page."""
    found = root.find(f".//section[@id='{key}']")
    assert found is not None
    return found


def tables(root: ElementTree.Element, key: str) -> dict[str, list[list[str]]]:
    """Caption → rows of texts of the tables of one section."""
    by_caption = {}
    for shown in part(root, key).iter("table"):
        rows = [["".join(cell.itertext()) for cell in row] for row in shown.iter("tr")]
        by_caption[texts(shown, "caption")[0]] = rows
    return by_caption


def by_name(rows: list[list[str]]) -> dict[str, dict[str, str]]:
    """First cell of a row → its cells by their headings."""
    return {row[0]: dict(zip(rows[0], row, strict=True)) for row in rows[1:]}


# --- what the page says ---


def test_scores_and_what_is_behind_them(root: ElementTree.Element) -> None:
    scores, evidence, cost = tables(root, "results").values()
    assert texts(root, "p", "verdict") == ["No method can be called better: one seed."]
    assert scores[0] == ["Method", "Avg", "Short sums", "Long sums"]
    rows = by_name(scores)
    averages = [rows[name]["Avg"].split()[0] for name in ("TRB", "Vanilla", "Veto")]
    assert averages == ["75.0", "50.0", "–"]
    assert all("±" in rows["Vanilla"][column] for column in scores[0][1:])
    behind = by_name(evidence)
    assert set(behind) == {"TRB", "Vanilla", "SKD", "Untrained student"}
    trust = behind["TRB"]
    assert (trust["Step"], trust["Of"], trust["Fresh"]) == ("30", "1", "75.0")
    assert trust["− Vanilla"] == "+25.0 (1 seed)"
    assert trust["95 % interval"].endswith("] problems only")
    assert "p" not in trust
    assert behind["Vanilla"]["− Vanilla"] == "–"
    assert [row[0] for row in cost] == ["Method", "TRB", "Vanilla", "SKD"]


def test_the_first_screen_is_a_leaderboard_beside_the_scores_over_training(
    root: ElementTree.Element,
) -> None:
    board = next(each for each in root.iter("section") if each.get("class") == "board")
    rows = [["".join(cell.itertext()).strip() for cell in row] for row in board.iter("tr")][1:]
    assert [row[0] for row in rows] == ["TRB", "Vanilla", "SKD", "Untrained student"]
    assert [row[3].split()[0] for row in rows if row[3]] == ["+25.0", "−25.0", "−25.0"]
    places = {}
    for row in board.iter("tr"):
        for circle in row.iter("circle"):
            places[next(row.iter("th")).text] = float(circle.get("cx", "").rstrip("%"))
    # The axis ends at 20 points, so that a method beyond it is no point.
    assert places.keys() == {"Vanilla"}
    assert [figure.get("id") for figure in board.iter("figure")] == [f"trajectories-{SETUP}"]


def test_marks_do_not_rely_on_colour(root: ElementTree.Element) -> None:
    results = part(root, "results")
    assert (texts(results, "b"), texts(results, "u")) == (["75.0"] * 3, ["50.0"] * 3)
    marks = [*texts(root, "span", "wrong"), *texts(root, "span", "right")]
    assert marks == ["✗ wrong", "✓ right"]


def test_a_partial_sweep_says_so(root: ElementTree.Element) -> None:
    (words,) = texts(root, "p", "partial")
    assert "4 of 10 units are done" in words


def test_figures_are_pictures_with_words(root: ElementTree.Element) -> None:
    drawn = ("trajectories", "cost", "entropy", "sweep", "tradeoff", "diagnostics")
    images = {figure.get("id"): figure for figure in root.iter("figure")}
    assert set(images) == {f"{kind}-{SETUP}" for kind in drawn}
    for figure in images.values():
        image, wide = next(figure.iter("img")), next(figure.iter("source"))
        for source in (image.get("src", ""), wide.get("srcset", "")):
            assert source.startswith("data:image/svg+xml;base64,")
        assert wide.get("media") == "(min-width: 46rem)"
        assert len(image.get("alt", "")) > 20
        assert "What it does not show" in texts(figure, "figcaption")[0]
    reasons = [reason.split(",")[0] for reason in texts(part(root, "figures"), "li")]
    assert reasons == [
        "Distance from the teacher",
        "Gain of continued prefixes",
        "The trust region at one prefix",
    ]


def test_diagnostics_are_means_over_the_warmup_and_the_last_step(root: ElementTree.Element) -> None:
    found = tables(root, "diagnostics")
    assert list(found) == ["Mean over the first 12 steps", "Last step"]
    early, last = map(by_name, found.values())
    assert [of["β*"]["TRB"] for of in (early, last)] == ["0.550", "–"]
    assert [of["Length (tokens)"]["Vanilla"] for of in (early, last)] == ["25.5", "49.0"]
    assert (early["β*"]["Vanilla"], early["Truncated (%)"]["Vanilla"]) == ("–", "25.0")


def test_missing_values_are_left_out_of_means() -> None:
    logged = {
        "beta": Series("m", {}, {5: [1.0, 3.0], 6: [], 7: [9.0]}),
        "q": Series("m", {}, {5: [], 7: [2.0]}),
    }
    assert early_means(logged, 2) == {"beta": 2.0}
    assert last_means(logged) == {"beta": 9.0, "q": 2.0}


def test_costs_count_repeated_time_once_for_each_time(
    study: Study, root: ElementTree.Element
) -> None:
    costs = family_costs(study, SETUP)
    vanilla, trust, base = (costs[name] for name in ("vanilla", "trust_region", "base_eval"))
    assert (vanilla.timed_steps, vanilla.repeated, vanilla.seconds["rollout"]) == (31, 1, 15.5)
    assert vanilla.seconds_per_step == pytest.approx(1.75)
    assert (vanilla.training_tokens, vanilla.teacher_positions) == (3000, 3000)
    assert (trust.units, trust.teacher_positions) == (1, 12 * 150 + 18 * 100)
    assert vanilla.evaluation_tokens == 2 * 2 * 3 * 40  # benchmarks, draws, problems, tokens
    assert (base.training_tokens, base.seconds_per_step) == (None, None)
    assert base.seconds == {"evaluate": 8.0}
    assert (costs["veto"].units, costs["veto"].total_seconds) == (0, None)
    rows = by_name(tables(root, "cost")["By phase"])
    assert list(rows["Veto"].values()) == ["Veto", "0", *["–"] * 13]
    assert (rows["Sum"]["Units"], rows["Sum"]["Placement"]) == ("4", "inline")
    assert "3 training steps ran more than once" in "".join(root.itertext())


def test_steps_of_another_placement_are_not_compared_and_start_up_is_in_no_step(
    tmp_path: Path,
) -> None:
    experiment, units = quickstart("methods.skd.placement=colocated")
    for unit in (units_of(units, method)[0] for method in METHODS):
        write_unit(tmp_path, experiment, unit, 2, 2)
        with closing(RunWriter(tmp_path, unit.id)) as run:
            run.append_timing({"step": 0, "phase": "start", "role": "teacher", "seconds": 6.5})
    costs = family_costs(Study(experiment, units, tmp_path), SETUP)
    vanilla = costs["vanilla"]
    assert (vanilla.seconds["start"], vanilla.seconds_per_step) == (6.5, pytest.approx(1.75))
    assert vanilla.total_seconds == pytest.approx(6.5 + 3 * 1.75 + 4 * 2.0)
    assert (costs["skd"].placements, costs["veto"].placements) == ({"colocated"}, frozenset())
    ((sheet, _),) = background.costs(facts(Study(experiment, units, tmp_path))).values()
    rows = by_name([list(sheet.headings), *([cell.text for cell in row] for row in sheet.rows)])
    shown = {name: (row["Placement"], row["Training step (s)"]) for name, row in rows.items()}
    assert shown["Vanilla"] == ("inline", "1.750")
    assert shown["SKD"] == ("colocated", "not comparable")
    assert shown["Sum"] == ("colocated; inline", "not comparable")
    assert shown["Veto"] == ("", "")
    assert rows["SKD"]["Start (s)"] == "6.5"


def test_provenance_names_code_problems_data_and_directories(root: ElementTree.Element) -> None:
    words = "".join(part(root, "provenance").itertext())
    for word in ("c0ffee with uncommitted changes", "ray missing", "box<1>", "arithmetic_short-"):
        assert word in words
    counted = tables(root, "provenance")["What was counted when it was read"]
    assert counted[1:] == [["Arithmetic", "golds: given", "7"], ["Arithmetic", "rows", "12,345"]]
    assert "Arithmetic: 2 of 9 training problems (1 of the 0 used) stand in Short sums" in words
    assert 'e.g. "1<2?"' in words


def test_the_provenance_says_when_how_and_on_what(root: ElementTree.Element) -> None:
    named = part(root, "provenance").iter("dl")
    shown: dict[str, str] = {}
    for terms in named:
        shown |= zip(texts(terms, "dt"), texts(terms, "dd"), strict=True)
    at = r" \([-0-9 :]+ UTC\)"
    commands = rf"trb submit first.yaml{at}, trb submit second.yaml 'seeds=\[0, 1\]'{at}"
    assert re.fullmatch(commands, shown["Command"])
    assert re.fullmatch(r"\d+ \w+ \d{4}, \d\d:\d\d to .+ UTC", shown["Date"])
    assert shown["Hardware"] == "2 × H100, 8 cores of Z80, x86_64"
    assert shown["Versions"] == "python 3.11, ray missing"


def test_only_the_first_problems_are_named(tmp_path: Path) -> None:
    loaded = quickstart("evaluation.benchmarks.arithmetic_long.limit=20")
    (_, sheet), *_ = background.parameters(facts(Study(*loaded, tmp_path)))
    words = "Short sums n = 4, Long sums n = 4 of the first 20 problems only"
    assert words in sheet.rows[0][-1].text
    models = [cell.text for cell in sheet.rows[0][1:3]]  # shipped, and made here where they are not
    assert all(re.fullmatch(r"by recipe: \d layers of \d+, \d+ updates", text) for text in models)


def test_trials_stand_by_score_with_links_to_their_directories(
    root: ElementTree.Element, page: Path, study: Study
) -> None:
    heads, *rows = tables(root, "trials")["Units, best score first"]
    assert heads == ["Setting", "Seed", "State", "Best step", "Score", "Minutes", "Run directory"]
    assert [row[0].split()[0] for row in rows[:4]] == ["TRB", "Vanilla", "Untrained", "SKD"]
    assert [row[4] for row in rows[:5]] == ["75.0", "50.0", "25.0", "25.0", "–"]
    assert rows[-1][2] == "waiting, 0 of 60"
    assert len(rows) == len(study.units)
    links = [unquote(link.get("href", "")) for link in part(root, "trials").iter("a")]
    assert len(links) == 4
    assert all((page.parent / link / "config.json").is_file() for link in links)


def test_a_page_outside_the_runs_has_no_links_that_break(tmp_path: Path, loaded: Loaded) -> None:
    study = Study(*loaded, tmp_path / "runs")
    started = units_of(study.units, "vanilla")[0]
    start(study.runs, started)
    assert f'href="{started.id}/"' in build(study, study.runs / "report.html")
    links = re.findall(r'href="([^"]*)"', build(study, tmp_path / "report.html"))
    assert [link for link in links if not link.startswith(("#", "data:"))] == []


def test_downloads_are_the_tables(root: ElementTree.Element, study: Study) -> None:
    files = {}
    for link in root.iter("a"):
        content = link.get("href", "").partition("base64,")[2]
        files[link.get("download")] = base64.b64decode(content).decode()
    assert files["table.csv"] == formats.to_csv(results_table(study))
    rows = list(csv.DictReader(files["trials.csv"].splitlines()))
    assert [row["unit"] for row in rows] == [unit.id for unit in study.units]


def test_hyper_parameters_are_those_of_the_experiment(
    root: ElementTree.Element, study: Study
) -> None:
    found = tables(root, "parameters")
    training = study.experiment.setups[SETUP].training
    keys = {row[0]: row[1] for row in found["Keys of the experiment file"]}
    assert keys["training.optimizer.lr"] == f"{training.optimizer.lr:g}"
    assert (keys["training.top_k"], keys["evaluation.rescore"]) == (str(training.top_k), "false")
    methods = {row[0]: row[1:] for row in found["Settings that were asked for"]}
    assert methods["TRB"][0] == "epsilon0 0.01, 0.05; K 12"


def test_benchmark_files_are_named_with_their_sha256(tmp_path: Path) -> None:
    loaded = quickstart("setups=[math-smoke]", "methods.sft_warmup=null", "data_dir=.")
    write_unit(tmp_path, loaded[0], units_of(loaded[1], "vanilla")[0], 1, 2)
    shown = build(Study(*loaded, tmp_path), tmp_path / "report.html")
    assert re.search(r"sha256 [0-9a-f]{64}", shown)


# --- the file ---


def test_the_same_directories_give_the_same_bytes(page: Path, text: str, study: Study) -> None:
    assert build(Study(study.experiment, study.units, study.runs), page) == text
    names = {path.name for path in page.parent.iterdir()}
    assert names == {"report.html", "experiment.yaml", "submits.jsonl"}  # no scratch file stays


def test_texts_of_rollouts_are_inert(text: str) -> None:
    own = ["curves-data", "plotly", None]
    found = re.findall(r'<script(?: type="[^"]*" id="([^"]*)")?>', text)
    assert [key or None for key in found] == own
    assert len(re.findall(r"</?script", text)) == 2 * len(own)
    assert text.count("&lt;script&gt;") == 2
    assert not re.findall(r"<img (?!src=\"data:)", text)


def test_nothing_comes_from_elsewhere(root: ElementTree.Element) -> None:
    sources = [node.get("src") or node.get("href") for node in root.iter()]
    assert any(sources)
    assert not [url for url in filter(None, sources) if re.match(r"(?!data:)[a-z]+:|//", url)]


# --- the command ---


def test_the_command_prints_where_the_page_is_between_the_verdict_and_the_next_command(
    tmp_path: Path, study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deep" / "page.html"
    code, printed, beside = trb_here(
        capsys, "report", QUICKSTART, "--runs", study.runs, "--out", out, "--figures"
    )
    assert (code, printed) == (0, f"{out}\n"), "a script takes the path from stdout"
    shown = out.read_text(encoding="utf-8")
    assert shown.startswith("<!doctype html>")
    verdict, *_, command = beside.splitlines()
    assert verdict in shown
    assert command.startswith(f"trb submit {QUICKSTART} --runs {study.runs} 'seeds=[")
    assert {path.suffix for path in out.parent.iterdir()} == {".html", ".png", ".pdf"}


def test_a_folder_that_cannot_be_written_to_is_one_line_that_names_the_option(
    tmp_path: Path,
    loaded: Loaded,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(path: Path, content: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    start(tmp_path, units_of(loaded[1], "vanilla")[0])
    monkeypatch.setattr("analysis.report.page.write_atomically", refused)  # root may write anywhere
    code, printed, complaint = trb_here(capsys, "report", QUICKSTART, "--runs", tmp_path)
    assert (code, printed, complaint.count("\n")) == (2, "", 1)
    assert "results/quickstart': expected a folder that can be written to" in complaint
    assert "--out" in complaint


@pytest.mark.parametrize(("out", "word"), [("folder", "--out: "), ("page.html", "trb submit")])
def test_mistakes_are_one_line(
    out: str, word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("folder", "none"):
        (tmp_path / name).mkdir()
    places = ["--runs", tmp_path / "none", "--out", tmp_path / out]
    assert word in trb_refuses(capsys, "report", QUICKSTART, *places)
    assert not (tmp_path / "page.html").exists()


def test_nothing_started_is_nothing_to_report(tmp_path: Path, loaded: Loaded) -> None:
    with pytest.raises(UserError, match="nothing to report of quickstart"):
        write_report(Study(*loaded, tmp_path), tmp_path / "report.html")


def test_a_unit_that_was_only_started_is_enough(tmp_path: Path, loaded: Loaded) -> None:
    with closing(RunWriter(tmp_path, units_of(loaded[1], "vanilla")[0].id)) as started:
        started.describe({}, lambda: PROVENANCE)
        started.fail("out of <memory>", "")
    shown = build(Study(*loaded, tmp_path), tmp_path / "report.html")
    assert "out of &lt;memory&gt;" in shown
    assert "trb probe continuation" in shown
    assert "<img" not in shown
    root = parsed(shown)
    assert len(texts(root, "p", "partial")) == 1
    assert tables(root, "diagnostics") == {}
    assert "Selected checkpoints, Avg (%)" not in tables(root, "results")
    assert "What was counted when it was read" not in tables(root, "provenance")


# --- in a browser ---


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def open_drawn(tab: Browser, page: Path, width: int) -> None:
    """Open a page and wait until its chart is drawn."""
    tab.open(page, width)
    tab.evaluate(
        """new Promise((done) => {
          const look = () => document.querySelector(".chart[data-drawn]") ? done() : setTimeout(look, 20);
          look();
        })"""
    )


def press(tab: Browser, key: str) -> None:
    """A key of the keyboard, on whatever has the focus."""
    code = {"Enter": 13, " ": 32, "ArrowLeft": 37}[key]
    text = {"Enter": "\r", " ": " "}.get(key, "")
    tab.call(
        "Input.dispatchKeyEvent", type="keyDown", key=key, text=text, windowsVirtualKeyCode=code
    )
    tab.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)


@pytest.mark.parametrize("width", [1920, 1280, 390])
def test_a_browser_shows_it_without_complaint(tab: Browser, page: Path, width: int) -> None:
    before = len(tab.requests)
    open_drawn(tab, page, width)
    assert tab.evaluate("[document.title, document.compatMode]") == [
        "quickstart – trb report",
        "CSS1Compat",
    ]
    styled = "getComputedStyle(document.querySelector('caption')).textAlign"
    assert tab.evaluate(styled) == "left"
    assert tab.evaluate("innerWidth") == width
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    images = tab.evaluate(
        "[...document.images].map(i => [i.complete, i.naturalWidth, i.clientWidth, i.clientHeight])"
    )
    assert len(images) == 6
    assert all(done and min(sizes) > 200 for done, *sizes in images)
    inside = tab.evaluate("document.querySelector('main').clientWidth")
    assert all(
        own == shown <= inside for _, own, shown, _ in images
    )  # no letter is smaller than it was drawn
    assert all((own < 400) == (width < 400) for _, own, _, _ in images)
    # All pairs of methods are in the page, and one is shown.
    assert tab.evaluate("document.querySelectorAll('[data-pair]:not([hidden])').length") == 1
    hidden = "[...document.querySelectorAll('#cost thead th')].map(h => h.checkVisibility())"
    assert tab.evaluate(hidden) == [True] * 8 + [False] * 7
    tab.evaluate("document.querySelector('#cost .unfold').open = true")
    assert tab.evaluate(hidden) == [True] * 15
    assert tab.problems == []
    loaded = tab.requests[before:]
    assert [url for url in loaded if not url.startswith("data:")] == [page.as_uri()]


def test_trials_are_sorted_by_their_headings_and_filtered_by_words(
    tab: Browser, page: Path
) -> None:
    open_drawn(tab, page, 1280)
    column = "[...document.querySelectorAll('#trials tbody tr')].map(r => r.cells[%d].textContent)"
    scores = tab.evaluate(column % 4)
    assert scores[:5] == ["75.0", "50.0", "25.0", "25.0", "–"]
    heading = "document.querySelectorAll('#trials thead button')[%d]"
    tab.evaluate(f"{heading % 4}.click()")
    assert tab.evaluate(column % 4) == scores
    tab.evaluate(f"{heading % 4}.click()")
    assert tab.evaluate(column % 4) == [*reversed(scores[:4]), *scores[4:]]  # missing ones last
    assert tab.evaluate(f"{heading % 4}.parentElement.ariaSort") == "ascending"
    tab.evaluate(f"{heading % 0}.focus()")
    press(tab, "Enter")
    names = tab.evaluate(column % 0)
    assert names == sorted(names, key=str.casefold)
    assert tab.evaluate("document.querySelectorAll('#trials [aria-sort]').length") == 1
    tab.evaluate("document.querySelector('#trials input').focus()")
    tab.call("Input.insertText", text="waiting skd")
    shown = tab.evaluate("[...document.querySelectorAll('#trials tbody tr:not([hidden])')].length")
    waiting = [name for name in names if "SKD" in name]
    assert shown == len(waiting) - 1  # one of them is done
    assert tab.evaluate("document.querySelector('#trials output').value") == f"{shown} of 10 rows"


def test_points_of_curves_name_themselves_and_are_compared_with_vanilla(
    tab: Browser, page: Path
) -> None:
    open_drawn(tab, page, 1280)
    at = """(() => {
      const chart = document.querySelector('.chart');
      chart.scrollIntoView();
      const { xaxis, yaxis } = chart._fullLayout, box = chart.getBoundingClientRect();
      return [box.left + xaxis._offset + xaxis.l2p(30), box.top + yaxis._offset + yaxis.l2p(75)];
    })()"""
    x, y = tab.evaluate(at)
    for shift in (40, 0):
        tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + shift, y=y)
    words = tab.evaluate(
        """new Promise((done) => {
          const look = () => {
            const label = document.querySelector('.hoverlayer .hovertext');
            label ? done(label.textContent) : setTimeout(look, 20);
          };
          look();
        })"""
    )
    assert re.fullmatch(r"TRB epsilon0=0.05 K=12(seed 0|one run), step 30: 75.0", words)
    drawn = "document.querySelector('.chart').data.map(t => [t.name.split(' ')[0], t.y.at(-1)])"
    lines = [["Vanilla", 50], ["TRB", 75], ["SKD", 25]]
    assert tab.evaluate(drawn) == [line for line in lines for _ in ("seeds", "mean")]
    tab.evaluate("document.querySelector('#curves input[type=checkbox]').click()")
    assert tab.evaluate(drawn)[1::2] == [["Vanilla", 0], ["TRB", 25], ["SKD", -25]]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Two seeds of three methods, of which one has two checkpoints, one seed of Veto, which is
    right on all short sums, and the untrained student.
    """
    experiment, units = quickstart("seeds=[0, 1]", "methods.veto.seeds=[0]")
    folder = tmp_path_factory.mktemp("compared")
    write_counts(folder, experiment, units_of(units, "base_eval")[0], 0, draw_counts(9, 0.2))
    for rate, method in enumerate(METHODS):
        for unit in units_of(units, method)[-2:]:
            counts = draw_counts(rate + 10 * unit.seed, 0.4 + rate / 10)
            write_counts(folder, experiment, unit, 30, counts)
            if method == "skd":
                write_counts(folder, experiment, unit, 40, draw_counts(unit.seed, 0.9))
    counts = draw_counts(7, 0.5)
    counts["arithmetic_short"] = [4] * len(counts["arithmetic_short"])
    write_counts(folder, experiment, units_of(units, "veto")[0], 30, counts)
    return Study(experiment, units, folder)


CHOOSE = """(pair) => {
  const [first, second] = document.querySelectorAll('.pairs select');
  [first.value, second.value] = pair;
  second.dispatchEvent(new Event('change', { bubbles: true }));
  const texts = (row) => [...row.cells].map((cell) => cell.textContent.replace('–', ''));
  return [...document.querySelectorAll('[data-pair]:not([hidden])')].map((result) => ({
    cells: [...result.querySelectorAll('tr')].map(texts),
    title: result.querySelector('caption').textContent,
    note: result.querySelector('.note').textContent,
  }));
}"""


def test_any_two_methods_are_compared_in_the_page_as_by_the_command(
    tab: Browser, compared: Study, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    page.write_text(build(compared, page), encoding="utf-8")
    tab.open(page, 1280)
    names = "[...document.querySelector('.pairs select').options].map(o => o.value)"
    known = tab.evaluate(names)
    assert known == ["trust_region", "vanilla", "veto", "skd", "base"]
    for pair in itertools.combinations(known, 2):
        (shown,) = tab.evaluate(f"({CHOOSE})({json.dumps(pair)})")
        assert tab.evaluate(f"({CHOOSE})({json.dumps(pair[::-1])})") == [shown]
        (wanted,) = compare(compared, ",".join(pair))
        # Columns of the command's table are padded, and a rule follows its headings.
        text = to_markdown([wanted])
        lines = [line for line in text.splitlines() if line.startswith("|")]
        del lines[1]
        cells = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
        assert shown["cells"] == cells
        assert shown["title"] in text
        assert shown["note"] == " ".join(explanation([wanted]))


def test_without_scripts_the_page_is_whole(tab: Browser, page: Path) -> None:
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        tab.open(page, 1280)
        shown = "getComputedStyle(document.querySelector('%s')).display"
        assert tab.evaluate(shown % "#curves .unscripted") == "block"
        assert tab.evaluate(shown % "#curves .live") == "none"
        assert tab.evaluate(shown % ".tools") == "none"
    finally:
        tab.call("Emulation.setScriptExecutionDisabled", value=False)


def test_hostile_texts_are_shown_as_they_are(tab: Browser, page: Path) -> None:
    tab.open(page, 1280)
    assert tab.evaluate("document.querySelectorAll('pre *').length") == 0
    assert EVIL in tab.evaluate("document.querySelector('.pair pre').textContent")


def test_the_browser_helper_notices_what_goes_wrong(tab: Browser, tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text(
        "<!doctype html><p style='width:900px'>x</p><img src='gone.png'><script>throw Error('no')</script>"
    )
    tab.problems.clear()
    tab.open(page, 390)
    assert tab.evaluate("document.documentElement.scrollWidth") > 390
    assert any("FILE_NOT_FOUND" in problem for problem in tab.problems)
    assert any("Uncaught" in problem for problem in tab.problems)
    tab.problems.clear()


def test_the_package_list_names_the_browser() -> None:
    listed = (SHIPPED.parent / "docker" / "lock" / "debian.txt").read_text().splitlines()
    assert [line for line in listed if not line.startswith("#")] == [
        "chromium",
        "shellcheck",
        "g++",
    ]
