"""The report: what stands on the page, that it is inert and the same every time, and how a browser
shows it.
"""

from __future__ import annotations

import base64
import csv
import errno
import html
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote

import pytest

from analysis.costs import family_costs
from analysis.figures.curves import Series
from analysis.numbers import p_text
from analysis.report.diagnostics import early_mean, last_step
from analysis.report.html import Html, element, join, table
from analysis.report.page import build_page, write_report
from analysis.report.spending import costs_section
from analysis.report.style import CSS
from analysis.report.summary import summary
from analysis.report.texts import decimal, duration_in_words
from analysis.scores.verdict import Verdict
from analysis.table import build, formats
from orchestrator.cli import main
from orchestrator.config import Experiment
from orchestrator.errors import UserError
from orchestrator.experiment.evaluation_protocol import evaluation_ids, fresh_evaluation_ids
from orchestrator.experiment.probe import DOCUMENTS, LOGS, probe_unit
from orchestrator.experiment.units import Unit
from orchestrator.records.writer import RunWriter
from orchestrator.selection.results_folder import note_submit
from orchestrator.selection.study import Invocation, Study
from tests.browser import Browser, browser
from tests.fake_runs import QUICKSTART, SHIPPED, quickstart, record, units_of, write_evaluation

Loaded = tuple[Experiment, list[Unit]]
SETUP = "arithmetic"
PARTS = [
    "results",
    "responses",
    "figures",
    "rollouts",
    "diagnostics",
    "cost",
    "trials",
    "parameters",
    "provenance",
]
EVIL = "<script>document.title='run'</script><img src=x onerror=\"document.title='run'\">"
METHODS = ("vanilla", "trust_region", "skd")  # of which the made-up sweep has runs
PROVENANCE = {
    "commit": "c0ffee",
    "dirty_diff": "+x",
    "versions": {"python": "3.11", "ray": None},
    "host": {
        "name": "box<1>",
        "system": "Linux",
        "machine": "x86_64",
        "cpu": "Z80",
        "cores": 8,
        "gpus": ["H100"] * 2,
    },
}


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return quickstart()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, loaded: Loaded) -> Path:
    """Vanilla, one trust region, SKD and the untrained student, evaluated; a probe whose texts are
    hostile.
    """
    folder = tmp_path_factory.mktemp("sweep") / "runs"
    experiment, units = loaded
    write_unit(folder, experiment, units_of(units, "base_eval")[0], 0, 1)
    for method, right in zip(METHODS, (2, 3, 1), strict=True):
        write_unit(folder, experiment, units_of(units, method)[-1], 30, right)
    write_probe(folder, experiment)
    return folder


def write_unit(folder: Path, experiment: Experiment, unit: Unit, steps: int, right: int) -> None:
    """`steps` rows, the third timed twice; one evaluated checkpoint of three problems, `right` of
    four correct.
    """
    blended = {"trust_region": 12, "skd": steps}.get(unit.method or "", 0)
    rows = [metrics(step, step < blended) for step in range(steps)]
    setup = experiment.setups[unit.setup]
    with closing(RunWriter(folder, unit.id)) as run:
        run.describe({}, lambda: PROVENANCE)
        run.append("metrics.jsonl", rows)
        run.append(
            "rollouts.jsonl",
            [rollout(step, reward) for step in range(steps) for reward in (0.0, 1.0)],
        )
        run.commit(steps)
        for step in [*range(steps), 2] if steps else []:
            run.append_timing(
                {
                    "step": step,
                    "phase": "train",
                    "rollout": 0.5,
                    "score": 0.25,
                    "reward": 0.0,
                    "learn": 1.0,
                }
            )
        for ids in (evaluation_ids(setup), fresh_evaluation_ids(setup)):
            for key, evaluation_id in ids.items():
                counts = [record(min(4, max(0, right + i)), problem=f"p{i}") for i in (-1, 0, 1)]
                write_evaluation(run, evaluation_id, steps, counts)
                run.append_timing(
                    {"step": steps, "phase": "evaluate", "benchmark": key, "seconds": 2.0}
                )
        if unit.method == "vanilla":
            run.describe_data({"rows": 12345, "golds": {"given": 7}})
        run.finish()


def metrics(step: int, blended: bool) -> dict[str, float | int]:
    row = {
        "step": step,
        "loss": 1.0,
        "reward": 0.5,
        "response_tokens": 100,
        "response_length": 20.0 + step,
    }
    row |= {"truncated": 0.25, "support_mass_student": 0.99, "teacher_entropy": 0.1}
    return row | (
        {"beta": 0.1 * step, "acceptance": 0.9, "teacher_positions": 150} if blended else {}
    )


def rollout(step: int, reward: float) -> dict[str, float | int]:
    return {
        "step": step,
        "reward": reward,
        "log_ratio": reward - 1,
        "teacher_log_prob": -0.5,
        "length": 9,
    }


def write_probe(folder: Path, experiment: Experiment) -> None:
    sides = {
        name: {
            "text": text,
            "correct": right,
            "length": 5,
            "truncated": right,
            "mean_teacher_log_prob": -0.5,
        }
        for name, text, right in (
            ("vanilla", EVIL, False),
            ("trust_region", "so 4 & \\boxed{4}\n" * 90, True),
        )
    }
    with closing(RunWriter(folder, probe_unit(experiment, SETUP).id, LOGS)) as run:
        run.describe({}, dict)
        run.write_document(DOCUMENTS[1], [{"prompt": f"2+2=? {EVIL}", "gold": "4", **sides}])
        run.commit(1)
        run.finish()


@pytest.fixture(scope="module")
def page(runs: Path, loaded: Loaded) -> Path:
    path = runs / "results" / "quickstart" / "report.html"
    for words in (("first.yaml",), ("second.yaml", "seeds=[0, 1]")):
        note_submit(Study(*loaded, runs, invocation=Invocation(words)))
    write_report(Study(*loaded, runs), path)
    return path


@pytest.fixture(scope="module")
def root(page: Path) -> ElementTree.Element:
    """The page as a tree."""
    return parsed(page.read_text(encoding="utf-8"))


def parsed(text: str) -> ElementTree.Element:
    """A page as a tree; that it is one says that every element is closed."""
    return ElementTree.fromstring(
        re.sub(r"<(meta|link|img|source)([^>]*)>", r"<\1\2/>", text.removeprefix("<!doctype html>"))
    )


def tables(root: ElementTree.Element, key: str) -> dict[str, list[list[str]]]:
    """Caption → rows of texts of the tables of one section."""
    found = root.find(f".//section[@id='{key}']")
    assert found is not None
    by_caption: dict[str, list[list[str]]] = {}
    for shown in found.iter("table"):
        caption = shown.find("caption")
        assert caption is not None
        rows = [["".join(cell.itertext()) for cell in row] for row in shown.iter("tr")]
        by_caption["".join(caption.itertext())] = rows
    return by_caption


# --- building blocks ---


def test_text_is_escaped_and_markup_is_not() -> None:
    shown = element("p", "a < b & c", element("b", "d"), title='"e"')
    assert shown == '<p title="&quot;e&quot;">a &lt; b &amp; c<b>d</b></p>'
    assert join(["<", Html("<br>"), ">"]) == "&lt;<br>&gt;"
    assert "<b>" not in element("p", shown + "x")  # a markup that became a string again is text


def test_a_table_names_its_rows_and_columns() -> None:
    made = table(
        "Sizes",
        ["Name", "Kind", "Size"],
        [["a", "<x>", "1"], ["b", "", ""]],
        texts=["Kind"],
        total=["Sum", "", "1"],
    )
    tree = ElementTree.fromstring(made)
    assert [th.get("scope") for th in tree.iter("th")] == ["col"] * 3 + ["row"] * 3
    assert ["".join(cell.itertext()) for cell in tree.iter("td")] == [
        "<x>",
        "1",
        "–",
        "–",
        "–",
        "1",
    ]
    assert [abbr.get("title") for abbr in tree.iter("abbr")] == ["not available"] * 3


def test_numbers_as_texts() -> None:
    assert [decimal(None), decimal(0.0), decimal(1234.56, 2)] == ["", "0.0", "1,234.56"]
    assert [duration_in_words(s) for s in (8.31, 59.9, 250, 3900)] == [
        "8.3 s",
        "1 min 00 s",
        "4 min 10 s",
        "1 h 05 min",
    ]
    assert [p_text(p) for p in (0.0005, 0.001, 0.25, None)] == ["< 0.001", "0.001", "0.250", ""]


# --- what the page says ---


def test_scores_and_what_is_behind_them(root: ElementTree.Element) -> None:
    scores, evidence, cost = tables(root, "results").values()
    assert scores[0] == ["Method", "Avg", "Short sums", "Long sums"]
    rows = {row[0]: row[1:] for row in scores[1:]}
    assert [rows[name][0].split()[0] for name in ("TRB", "Vanilla", "Veto")] == [
        "75.0",
        "50.0",
        "–",
    ]
    assert all("±" in cell for cell in rows["Vanilla"])
    behind = {row[0]: dict(zip(evidence[0], row, strict=True)) for row in evidence[1:]}
    assert set(behind) == {
        "TRB",
        "Vanilla",
        "SKD",
        "Untrained student",
    }
    trust = behind["TRB"]
    assert (trust["Step"], trust["Of"], trust["Fresh samples"][:4], trust["− Vanilla"]) == (
        "30",
        "1",
        "75.0",
        "+25.0 (1 seed)",
    )
    assert trust["its 95 % interval"].endswith("] problems only")
    assert "p" not in evidence[0]
    assert behind["Vanilla"]["− Vanilla"] == "–"
    assert [row[0] for row in cost] == ["Method", "TRB", "Vanilla", "SKD"]


def test_marks_do_not_rely_on_colour(root: ElementTree.Element) -> None:
    results = root.find(".//section[@id='results']")
    assert results is not None
    assert [cell.text for cell in results.iter("b")] == ["75.0"] * 3
    assert [cell.text for cell in results.iter("u")] == ["50.0"] * 3
    marks = [span.text for span in root.iter("span") if span.get("class") in ("right", "wrong")]
    assert marks == ["✗ incorrect", "✓ correct"]


def test_a_partial_sweep_says_so(root: ElementTree.Element) -> None:
    said = ["".join(p.itertext()) for p in root.iter("p") if p.get("class") == "partial"]
    assert len(said) == 1
    assert "4 of 10 units are done" in said[0]


def test_figures_are_pictures_with_words(root: ElementTree.Element) -> None:
    images = {figure.get("id"): figure for figure in root.iter("figure")}
    of_setup = {
        f"{kind}-{SETUP}"
        for kind in ("trajectories", "cost", "entropy", "sweep", "tradeoff", "diagnostics")
    }
    assert set(images) == of_setup | {"gantt-quickstart"}
    for figure in images.values():
        image, wide = next(figure.iter("img")), next(figure.iter("source"))
        for source in (image.get("src", ""), wide.get("srcset", "")):
            assert source.startswith("data:image/svg+xml;base64,")
        assert wide.get("media") == "(min-width: 46rem)"
        assert len(image.get("alt", "")) > 20
        assert "What it does not show" in "".join(next(figure.iter("figcaption")).itertext())
    reasons = [item.text for item in root.findall(".//section[@id='figures']//li")]
    assert [reason.split(",")[0] for reason in reasons if reason] == [
        "Gain of continued prefixes",
        "The trust region at one prefix",
    ]


def test_diagnostics_are_means_over_the_warmup_and_the_last_step(root: ElementTree.Element) -> None:
    found = tables(root, "diagnostics")
    early, last = (
        {row[0]: dict(zip(rows[0], row, strict=True)) for row in rows[1:]}
        for rows in found.values()
    )
    assert list(found) == ["Mean over the first 12 steps", "Last step"]
    trust, vanilla = "TRB", "Vanilla"
    assert (early[trust]["β*"], last[trust]["β*"]) == ("0.550", "–")
    assert (
        early[vanilla]["β*"],
        early[vanilla]["Length (tokens)"],
        last[vanilla]["Length (tokens)"],
    ) == (
        "–",
        "25.5",
        "49.0",
    )
    assert early[vanilla]["Truncated (%)"] == "25.0"


def test_missing_values_are_left_out_of_means() -> None:
    logged = {
        "beta": Series("m", {}, {5: [1.0, 3.0], 6: [], 7: [9.0]}),
        "q": Series("m", {}, {5: [], 7: [2.0]}),
    }
    assert early_mean(logged, 2) == {"beta": 2.0}
    assert last_step(logged) == {"beta": 9.0, "q": 2.0}


def test_costs_count_repeated_time_once_for_each_time(
    runs: Path, loaded: Loaded, root: ElementTree.Element
) -> None:
    costs = family_costs(Study(*loaded, runs), SETUP)
    vanilla, trust, base = (costs[name] for name in ("vanilla", "trust_region", "base_eval"))
    assert (vanilla.timed_steps, vanilla.repeated, vanilla.seconds["rollout"]) == (31, 1, 15.5)
    assert vanilla.seconds_per_step == pytest.approx(1.75)
    assert (vanilla.training_tokens, vanilla.teacher_positions) == (3000, 3000)
    assert (trust.units, trust.teacher_positions) == (1, 12 * 150 + 18 * 100)
    assert vanilla.evaluation_tokens == 2 * 2 * 3 * 40  # benchmarks, draws, problems, tokens
    assert (base.training_tokens, base.seconds, base.seconds_per_step) == (
        None,
        {"evaluate": 8.0},
        None,
    )
    assert (costs["veto"].units, costs["veto"].total_seconds) == (0, None)
    rows = {row[0]: row[1:] for row in tables(root, "cost")["By phase"][1:]}
    assert rows["Veto"] == ["0", *["–"] * 12]
    assert rows["Sum"][:2] == ["4", "inline"]
    assert "3 training steps ran more than once" in "".join(root.itertext())


def test_steps_of_another_placement_are_not_compared_and_start_up_is_in_no_step(
    tmp_path: Path,
) -> None:
    experiment, units = quickstart("methods.skd.placement=colocated")
    for method in ("vanilla", "trust_region", "skd"):
        write_unit(tmp_path, experiment, units_of(units, method)[0], 2, 2)
        with closing(RunWriter(tmp_path, units_of(units, method)[0].id)) as run:
            run.append_timing({"step": 0, "phase": "start", "role": "teacher", "seconds": 6.5})
    costs = family_costs(Study(experiment, units, tmp_path), SETUP)
    assert (costs["vanilla"].seconds["start"], costs["vanilla"].seconds_per_step) == (
        6.5,
        pytest.approx(1.75),
    )
    assert costs["vanilla"].total_seconds == pytest.approx(6.5 + 3 * 1.75 + 4 * 2.0)
    assert (costs["skd"].placements, costs["veto"].placements) == ({"colocated"}, frozenset())
    section = parsed(f"<main>{costs_section(experiment, {SETUP: costs})}</main>")
    rows = {row[0]: row[1:] for row in tables(section, "cost")["By phase"]}
    column = {name: index - 1 for index, name in enumerate(["", *rows["Method"]])}
    shown = {
        name: (row[column["Placement"]], row[column["Training step (s)"]])
        for name, row in rows.items()
    }
    assert shown["Vanilla"] == ("inline", "1.750")
    assert shown["SKD"] == ("colocated", "not comparable")
    assert shown["Sum"] == ("colocated; inline", "not comparable")
    assert shown["Veto"] == ("–", "–")
    assert rows["SKD"][column["Start (s)"]] == "6.5"


def test_provenance_names_code_problems_data_and_directories(
    root: ElementTree.Element, page: Path, runs: Path
) -> None:
    section = root.find(".//section[@id='provenance']")
    assert section is not None
    words = "".join(section.itertext())
    for word in ("c0ffee with uncommitted changes", "ray missing", "box<1>", "arithmetic_short-"):
        assert word in words
    assert ["Arithmetic", "golds: given", "7"] in tables(root, "provenance")[
        "What was counted when it was read"
    ]


def facts(root: ElementTree.Element) -> dict[str, str]:
    """The terms under the head of the page."""
    found = next(one for one in root.iter("dl") if one.get("class") == "facts")
    terms, texts = (
        ["".join(node.itertext()) for node in found.iter(name)] for name in ("dt", "dd")
    )
    return dict(zip(terms, texts, strict=True))


def test_the_head_says_when_how_and_on_what(root: ElementTree.Element) -> None:
    shown = facts(root)
    command = r"trb submit first.yaml \([-0-9 :]+ UTC\), trb submit second.yaml 'seeds=\[0, 1\]' \([-0-9 :]+ UTC\)"
    assert re.fullmatch(command, shown["Command"])
    assert re.fullmatch(r"\d+ \w+ \d{4}, \d\d:\d\d to .+ UTC", shown["Date"])
    assert shown["Hardware"] == "2 × H100, 8 cores of Z80, x86_64"
    assert shown["Versions"] == "python 3.11"
    assert shown["Downloads"] == "table.csv, table.tex, table.json, trials.csv"


def test_only_the_first_problems_are_named_in_the_head() -> None:
    experiment = quickstart("evaluation.benchmarks.arithmetic_long.limit=20")[0]
    words = summary(experiment, [], Verdict())
    assert "arithmetic_short n = 4, arithmetic_long n = 4 of the first 20 problems only" in words


def test_trials_stand_by_score_with_links_to_their_directories(
    root: ElementTree.Element, page: Path, loaded: Loaded
) -> None:
    heads, *rows = tables(root, "trials")["Units, best score first"]
    assert heads == ["Setting", "Seed", "State", "Best step", "Score", "Minutes", "Run directory"]
    assert [row[0].split()[0] for row in rows[:4]] == ["TRB", "Vanilla", "Untrained", "SKD"]
    assert [row[4] for row in rows[:5]] == ["75.0", "50.0", "25.0", "25.0", "–"]
    assert rows[-1][2] == "waiting, 0 of 60"
    assert len(rows) == len(loaded[1])
    section = root.find(".//section[@id='trials']")
    assert section is not None
    links = [unquote(link.get("href", "")) for link in section.iter("a")]
    assert len(links) == 4
    assert all((page.parent / link / "config.json").is_file() for link in links)


def test_a_page_outside_the_runs_has_no_links_that_break(tmp_path: Path, loaded: Loaded) -> None:
    started = units_of(loaded[1], "vanilla")[0]
    runs = tmp_path / "runs"
    with closing(RunWriter(runs, started.id)) as run:
        run.describe({}, dict)
    inside, text = (
        build_page(Study(*loaded, runs), folder / "report.html") for folder in (runs, tmp_path)
    )
    assert f'href="{started.id}/"' in inside
    assert f'href="{started.id}/"' not in text
    assert set(re.findall(r'href="([^"]*)"', text)) - {f"#{part}" for part in PARTS} == set(
        re.findall(r'href="(data:[^"]*)"', text)
    )


def test_downloads_are_the_tables(root: ElementTree.Element, runs: Path, loaded: Loaded) -> None:
    links = {
        link.get("download"): link.get("href", "")
        for link in root.iter("a")
        if link.get("download")
    }
    files = {
        name: base64.b64decode(link.partition("base64,")[2]).decode()
        for name, link in links.items()
        if name
    }
    assert files["table.csv"] == formats.to_csv(build.results_table(Study(*loaded, runs)))
    names, *rows = csv.reader(files["trials.csv"].splitlines())
    first = dict(zip(names, rows[0], strict=True))
    assert first["unit"] == loaded[1][0].id
    assert len(rows) == len(loaded[1])


def test_hyper_parameters_are_those_of_the_experiment(
    root: ElementTree.Element, loaded: Loaded
) -> None:
    found = tables(root, "parameters")
    training = loaded[0].setups[SETUP].training
    keys = {row[0]: row[1] for row in found["Keys of the experiment file"]}
    assert keys["training.optimizer.lr"] == f"{training.optimizer.lr:g}"
    assert (keys["training.top_k"], keys["evaluation.rescore"]) == (str(training.top_k), "false")
    methods = {row[0]: row[1:] for row in found["Settings that were asked for"]}
    assert methods["TRB"][0] == "epsilon0 0.01, 0.05; K 12"


def test_benchmark_files_are_named_with_their_sha256(tmp_path: Path) -> None:
    loaded = quickstart("setups=[math-smoke]", "methods.sft_warmup=null", "data_dir=.")
    write_unit(tmp_path, loaded[0], units_of(loaded[1], "vanilla")[0], 1, 2)
    text = build_page(Study(*loaded, tmp_path), tmp_path / "report.html")
    assert re.search(r"sha256 [0-9a-f]{64}", text)


# --- the file ---


def test_the_same_directories_give_the_same_bytes(page: Path, runs: Path, loaded: Loaded) -> None:
    assert build_page(Study(*loaded, runs), page) == page.read_text(encoding="utf-8")
    names = {path.name for path in page.parent.iterdir()}
    assert names == {"report.html", "experiment.yaml", "submits.jsonl"}  # no scratch file stays


def test_texts_of_rollouts_are_inert(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "<script" not in text
    assert text.count("&lt;script&gt;") == 2
    assert not re.findall(r"<img (?!src=\"data:)", text)


def test_nothing_comes_from_elsewhere(page: Path, root: ElementTree.Element) -> None:
    policy = next(meta.get("content", "") for meta in root.iter("meta") if meta.get("http-equiv"))
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    sources = [
        node.get("src") or node.get("href") or ""
        for node in root.iter()
        if node.tag in ("img", "link", "a")
    ]
    assert sources
    assert not [source for source in sources if re.match(r"(?!data:)[a-z]+:|//", source)]
    assert "url(" not in CSS
    assert "@import" not in CSS


# --- the command ---


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["report", str(QUICKSTART), *map(str, arguments)])
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


def test_the_command_prints_where_the_page_is_between_the_verdict_and_the_next_command(
    tmp_path: Path, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deep" / "page.html"
    code, printed, beside = run(capsys, "--runs", runs, "--out", out, "--figures")
    assert (code, printed) == (0, f"{out}\n"), "a script takes the path from stdout"
    text = out.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    verdict, *_, command = beside.splitlines()
    assert html.escape(verdict) in text
    assert command.startswith(f"trb submit {QUICKSTART} --runs {runs} 'seeds=[")
    assert {path.suffix for path in out.parent.iterdir()} == {".html", ".png", ".pdf"}


def test_a_folder_that_cannot_be_written_to_is_one_line_that_names_the_option(
    tmp_path: Path,
    loaded: Loaded,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with closing(RunWriter(tmp_path, units_of(loaded[1], "vanilla")[0].id)) as started:
        started.describe({}, dict)

    def refused(path: Path, content: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("analysis.report.page.write_atomically", refused)  # root may write anywhere
    code, printed, complaint = run(capsys, "--runs", tmp_path)
    assert (code, printed, complaint.count("\n")) == (2, "", 1)
    assert "report.html: permission denied; --out report.html" in complaint


@pytest.mark.parametrize(("out", "word"), [("folder", "--out: "), ("page.html", "trb submit")])
def test_mistakes_are_one_line(
    out: str, word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("folder", "none"):
        (tmp_path / name).mkdir()
    code, printed, complaint = run(capsys, "--runs", tmp_path / "none", "--out", tmp_path / out)
    assert (code, printed, complaint.count("\n")) == (2, "", 1)
    assert word in complaint
    assert not (tmp_path / "page.html").exists()


def test_nothing_started_is_nothing_to_report(tmp_path: Path, loaded: Loaded) -> None:
    with pytest.raises(UserError, match="nothing to report of quickstart"):
        write_report(Study(*loaded, tmp_path), tmp_path / "report.html")


def test_a_unit_that_was_only_started_is_enough(tmp_path: Path, loaded: Loaded) -> None:
    unit = units_of(loaded[1], "vanilla")[0]
    with closing(RunWriter(tmp_path, unit.id)) as started:
        started.describe({}, lambda: PROVENANCE)
        started.fail("out of <memory>", "")
    text = build_page(Study(*loaded, tmp_path), tmp_path / "report.html")
    for words in ("This report is partial", "Failed:", "out of &lt;memory&gt;", "No checkpoint has been evaluated",
                  "No step of a chosen run", "trb probe continuation", "No unit recorded"):  # fmt: skip
        assert words in text
    assert "<img" not in text


# --- in a browser ---


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_shows_it_without_complaint(
    tab: Browser, page: Path, root: ElementTree.Element, width: int
) -> None:
    keys = len(tables(root, "parameters")["Keys of the experiment file"]) - 1
    before = len(tab.requests)
    tab.open(page, width)
    assert tab.evaluate("[document.title, document.compatMode]") == [
        "quickstart – trb report",
        "CSS1Compat",
    ]
    styled = "getComputedStyle(document.querySelector('caption')).textAlign"
    assert tab.evaluate(styled) == "left"  # the policy lets the style sheet in
    assert tab.evaluate("innerWidth") == width
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    images = tab.evaluate(
        "[...document.images].map(i => [i.complete, i.naturalWidth, i.clientWidth, i.clientHeight])"
    )
    assert len(images) == 7
    assert all(done and min(sizes) > 200 for done, *sizes in images)
    inside = tab.evaluate("document.querySelector('main').clientWidth")
    assert all(
        own == shown <= inside for _, own, shown, _ in images
    )  # no letter is smaller than it was drawn
    assert all((own < 400) == (width < 400) for _, own, _, _ in images)
    assert tab.evaluate(
        "[...document.querySelectorAll('table')].map(t => t.tBodies[0].rows.length)"
    ) == [
        *(1, 8, 4, 3),  # setups, scores, selected checkpoints, scores at equal cost
        *(3, 3, 9),  # diagnostics twice, costs
        *(10, 7, keys),  # units, methods, keys
        *(2, 2),  # benchmarks, data
    ]
    assert tab.problems == []
    loaded = tab.requests[before:]
    assert [url for url in loaded if not url.startswith("data:")] == [page.as_uri()]


def test_hostile_texts_are_shown_as_they_are(tab: Browser, page: Path) -> None:
    tab.open(page, 1280)
    assert tab.evaluate("document.querySelectorAll('script, pre *').length") == 0
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
