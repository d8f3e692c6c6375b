"""The documents hold: their examples run, their commands are commands, their links lead somewhere,
the help helps.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from analysis.labels import benchmark_key, benchmark_label
from analysis.numbers import signed, tenths_text
from orchestrator import cli
from orchestrator.commands.arguments import Parser
from orchestrator.data import arithmetic, benchmarks
from orchestrator.data.benchmarks import load_benchmark
from orchestrator.data.files import folder_sha256
from orchestrator.errors import UserError
from orchestrator.experiment import methods
from orchestrator.experiment.evaluation_protocol import evaluation_ids, fresh_evaluation_ids
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.units import checkpoint_steps, expand
from orchestrator.grading.grader import Grader
from orchestrator.models.locate import EXPERIMENTS, checkpoint_of
from orchestrator.policy import laws, spec
from orchestrator.records.log import columns_of_step
from orchestrator.records.rundir import RunReader
from orchestrator.records.writer import RunWriter
from orchestrator.selection.results_folder import claim
from orchestrator.selection.study import Study
from orchestrator.tracking.tracker import Mirror
from tests.experiment.test_local_files import write_model
from tests.fake_runs import SAMPLES, record, write_evaluation, write_run
from tests.policy import test_laws
from tests.sweeps import ROOT, trb_shows, write_experiment
from tests.without_ray import run_without_ray

DOCS = ROOT / "docs"
KINDS = ("method", "setup", "benchmark", "grader", "tracker")
METHOD, SETUP, BENCHMARK, GRADER, TRACKER = EXTENDING = [
    DOCS / f"add-a-{what}.md" for what in KINDS
]
FIRST_HOUR = DOCS / "first-hour-on-gpus.md"  # test_first_hour looks at what it says is printed
OUT_OF_DOMAIN = DOCS / "out-of-domain.md"
COMING_FROM = DOCS / "coming-from-wandb-and-tune.md"
README = ROOT / "README.md"
PAGES = [
    README,
    ROOT / "experiments" / "README.md",
    ROOT / "docker" / "README.md",
    *sorted(DOCS.glob("*.md")),
]
LINKED = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "ARCHITECTURE.md"]
RUN_HERE = (
    "plan",
    "power",
    "config",
    "list",
    "status",
    "table",
)  # the other commands work for minutes; they are parsed


def commands(page: Path) -> Iterator[str]:
    """The commands in a page's fenced blocks, without the remarks behind them."""
    text = page.read_text("utf-8")
    for language, block in re.findall(
        r"^```(\w*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL
    ):
        if language:
            continue
        yield from (
            line.partition("  ")[0] for line in block.splitlines() if line.startswith("trb ")
        )


def mentioned(page: Path) -> Iterator[list[str]]:
    """The words after `trb` of each command in sentences and tables, `trb plan EXP --why`."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    yield from (words.split() for words in re.findall(r"`trb\s+([a-z][^`]*)`", text))


@pytest.fixture
def here(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The folder in which a reader tries the examples, with models where the setup of the page has
    them.
    """
    monkeypatch.chdir(tmp_path)
    # One cache for all: the models of the page are tried once, in a process of their own.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # as the page of graders has it
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("TRB_DATA_DIR", "TRB_RUNS"):
        monkeypatch.delenv(name, raising=False)
    write_model(tmp_path / "student")
    write_model(tmp_path / "teacher", 61, num_hidden_layers=5)
    write_tokenizer(tmp_path / "teacher")
    for page in PAGES:
        for name, text in examples(page, "file").items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")  # the reader stands in a clone
    return tmp_path


def write_tokenizer(folder: Path) -> None:
    """A tokenizer that can be opened, with the ids of `write_model` and a chat template."""
    words = [chr(33 + i) for i in range(50)] + [f"<{i}>" for i in range(50, 60)]
    ids = {word: i for i, word in enumerate([*words, "<end>", "<|im_end|>"])}
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(ids, unk_token="!")),
        eos_token="<|im_end|>",
        chat_template="{% for m in messages %}{{ m['content'] }}{% endfor %}",
    ).save_pretrained(folder)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runs folder with a made-up finished quickstart: scores that differ between seeds, and
    clocked work.
    """
    runs = tmp_path_factory.mktemp("finished") / "runs"
    experiment = load_experiment(EXPERIMENTS / "quickstart.yaml")
    units = expand(experiment, runs)
    for unit in units:
        setup = experiment.setups[unit.setup]
        steps = {"base_eval": [0], "sft": []}.get(unit.kind, checkpoint_steps(unit, setup))
        others = len(setup.evaluation.benchmarks) - 1
        scores = {
            step: [place, *[(unit.seed or 0) % 3] * others] for place, step in enumerate(steps, 1)
        }
        write_run(runs, experiment, unit, scores, unit.steps)
        with closing(RunWriter(runs, unit.id)) as run:
            for step in range(unit.steps):
                run.append_timing(
                    {"step": step, "phase": "train", "rollout": 0.1, "score": 0.1, "learn": 0.1}
                )
            for key, fresh_id in fresh_evaluation_ids(experiment.setups[unit.setup]).items():
                for step in steps:
                    work = {
                        "phase": "evaluate",
                        "benchmark": key,
                        "responses": SAMPLES,
                        "seconds": 0.1,
                    }
                    run.append_timing({"step": step, **work})
                for step in steps[-1:]:
                    write_evaluation(run, fresh_id, step, [record(2)])
    claim(Study(experiment, units, runs))
    return runs


def examples(page: Path, kind: str) -> dict[str, str]:
    """Name → text of the fenced blocks of a page that stand after a comment `<!-- kind: name -->`."""
    pattern = rf"^<!-- {kind}: ([^\n]+) -->\n```\w+\n(.*?)^```$"
    return dict(re.findall(pattern, page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL))


def trials(plan: str) -> dict[str, int]:
    """Method → trials of `trb plan --json`."""
    found = [unit["method"] for unit in json.loads(plan)["units"] if unit["kind"] == "trial"]
    return {method: found.count(method) for method in found}


def edited(module: ModuleType) -> dict[str, Any]:
    """The names of a module of the program after the edits of the method page, and no others."""
    assert module.__file__ is not None
    file = str(Path(module.__file__).relative_to(ROOT))
    names = dict(vars(module))
    for kind in ("import", "append"):
        exec(examples(METHOD, kind).get(file, ""), names)
    return names


@pytest.fixture
def added_method(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The running program with the page's method; the names of `tests/policy/test_laws.py` then."""
    monkeypatch.setattr(spec, "TeacherNucleus", edited(spec)["TeacherNucleus"], raising=False)
    edited(laws)
    names = edited(methods)
    exec(f"added = {{{examples(METHOD, 'row')['METHODS']}}}", names)
    [(key, row)] = names["added"].items()
    monkeypatch.setitem(methods.METHODS, key, row)
    return edited(test_laws)


# --- the examples ---


def test_the_example_of_a_method_is_planned_by_any_of_its_names(
    added_method: dict[str, Any], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert trials(trb_shows(capsys, "plan", "nucleus.yaml", "--json")) == {
        "vanilla": 2,
        "teacher_nucleus": 4,
    }
    units = json.loads(trb_shows(capsys, "plan", "nucleus.yaml", "--json", "--methods", "Nucleus"))[
        "units"
    ]
    assert {
        unit["resources"]["teacher_online_steps"] for unit in units if unit["kind"] == "trial"
    } == {12}
    assert "Nucleus" in trb_shows(capsys, "plan", "nucleus.yaml")
    assert "Teacher nucleus" in trb_shows(capsys, "list", "methods")


def test_the_example_of_a_law_passes_the_test_beside_it(added_method: dict[str, Any]) -> None:
    [name] = {name for name in set(added_method) - set(vars(test_laws)) if name.startswith("test_")}
    test: Callable[[], None] = added_method[name]
    test()


def test_the_example_of_rates_counts_a_trial_for_each(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rates multiply grids; at the setup's own rate the trials are those of a plain experiment."""
    plan = ("plan", "rates.yaml", "confirm=null", "--json")
    counted = {"vanilla": 6, "trust_region": 6, "sft_warmup": 2}
    assert trials(trb_shows(capsys, *plan)) == counted
    warm = "methods.sft_warmup.axes.training.optimizer.lr=[2e-4,4e-4]"
    assert trials(trb_shows(capsys, *plan, warm)) == counted | {"sft_warmup": 4}
    ids = {unit.id for unit in expand(load_experiment(here / "rates.yaml"))}
    plain = ("axes.training.optimizer.lr=null",)
    assert {unit.id for unit in expand(load_experiment(here / "rates.yaml", plain))} < ids


def test_a_sweep_of_another_program_has_the_trials_that_the_page_counts(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Methods × rates × seeds and the fresh runs; a second rate shares the units of the first."""
    text = " ".join(COMING_FROM.read_text("utf-8").split())
    counted = (
        r"has (\d+) exploring trials and (\d+) fresh ones.* (\d+) trials a second rate: (\d+),"
    )
    [(exploring, fresh, shipped, both)] = [map(int, found) for found in re.findall(counted, text)]
    assert trials(
        trb_shows(capsys, "plan", "from-a-sweep.yaml", "confirm=null", "--json")
    ) == dict.fromkeys(("vanilla", "trust_region"), exploring // 2)
    shown = trb_shows(capsys, "plan", "from-a-sweep.yaml")
    assert re.search(rf"^confirming .* {fresh}$", shown, re.MULTILINE)
    quickstart = EXPERIMENTS / "quickstart.yaml"
    plain = {unit.id for unit in expand(load_experiment(quickstart)) if unit.is_trial}
    [override] = re.findall(r"'(axes=.*?)'", text)
    ids = {unit.id for unit in expand(load_experiment(quickstart, [override])) if unit.is_trial}
    assert (len(plain), len(ids), len(plain & ids)) == (shipped, both, shipped)


def test_the_paper_small_head_names_an_override_for_every_method() -> None:
    path = ROOT / "experiments" / "paper-small.yaml"
    [override] = re.findall(r"'(axes=.*)'", path.read_text("utf-8"))
    plain, experiment = load_experiment(path), load_experiment(path, [override])
    assert {len(grid["training.optimizer.lr"]) for grid in experiment.methods.values()} == {3}
    assert sum(unit.is_trial for unit in expand(experiment)) == 51
    assert {unit.id for unit in expand(plain)} < {unit.id for unit in expand(experiment)}


def test_the_example_of_a_setup_is_read_off_its_folders(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert trials(trb_shows(capsys, "plan", "my-experiment.yaml", "--json")) == {
        "vanilla": 1,
        "trust_region": 1,
    }
    experiment = load_experiment(here / "my-experiment.yaml")
    setup = experiment.setups["my-pair"]
    assert (setup.student.shape.layers, setup.teacher.shape.layers) == (3, 5)
    assert (setup.student.eos, setup.teacher.eos) == (60, 61)
    assert (setup.vocabulary.size, setup.vocabulary.valid) == (64, 62)
    assert [note.partition(":")[0] for note in experiment.notes] == [
        "my-pair.student",
        "my-pair.teacher",
    ]
    assert all("to pin it: revision: " in note for note in experiment.notes)


def test_a_pinned_model_that_changes_is_refused(here: Path) -> None:
    setup_file = here / "setups" / "my-pair.yaml"
    pinned = f"student: {{path: ./student, revision: {folder_sha256(here / 'student')}}}"
    setup_file.write_text(
        setup_file.read_text("utf-8").replace("student: {path: ./student}", pinned),
        encoding="utf-8",
    )
    (here / "student" / "model.safetensors").write_bytes(b"other weights")
    setup = load_experiment(here / "my-experiment.yaml").setups["my-pair"]
    with pytest.raises(UserError, match="the setup declares"):
        checkpoint_of(setup.student, setup, here / "runs")


def test_the_rows_of_the_example_of_a_benchmark_are_problems(here: Path) -> None:
    setup = load_experiment(here / "sums.yaml").setups["arithmetic"]
    run = setup.evaluation.benchmarks["my"]
    assert (run.n, run.problems) == (4, 3)
    assert set(setup.evaluation.benchmarks) == {"arithmetic_short", "my"}
    found = [
        (problem.id, problem.gold and problem.gold.answer)
        for problem in load_benchmark("my", None, run)
    ]
    assert found == [("first", "7"), ("second", "8"), ("third", "10")]


def test_the_example_out_of_domain_is_a_column_beside_those_of_the_setup(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = load_experiment(here / "far.yaml")
    setup = experiment.setups["arithmetic"]
    assert set(setup.evaluation.benchmarks) == {"arithmetic_short", "arithmetic_long", "far"}
    problems = load_benchmark("far", None, setup.evaluation.benchmarks["far"])
    for problem in problems:  # the world of the page: its characters, and sums that are right
        assert set(problem.text) <= set(arithmetic.CHARACTERS)
        assert problem.gold is not None
        terms = map(int, problem.text.removesuffix("=?").split("+"))
        assert sum(terms) == int(problem.gold.answer)
    runs = here / "runs"
    for unit in expand(experiment, runs):
        step = 0 if unit.is_untrained else 60
        ids = evaluation_ids(setup)
        write_run(runs, experiment, unit, {step: [2, 1, None]}, unit.steps)
        with closing(RunWriter(runs, unit.id)) as run:
            scores = [record(place + 1, problem=each.id) for place, each in enumerate(problems)]
            write_evaluation(run, ids["far"], step, scores)
    printed = trb_shows(capsys, "table", "far.yaml")
    assert "Far sums" in printed
    assert "Far sums: 3 problems" in printed
    document = json.loads(trb_shows(capsys, "table", "far.yaml", "--format", "json"))
    for block, name, value in (("selected", "score", 50), ("responses", "pass_at_k", 100)):
        found = {(row["method"], row["benchmark"]): row for row in document["evidence"][block]}
        assert found["vanilla", "far"][name] == value


def test_the_example_of_a_row_adds_a_benchmark_with_its_label(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = dict(vars(benchmarks))
    exec(f"added = {{{examples(BENCHMARK, 'example')['benchmarks.py']}}}", names)
    [(key, row)] = names["added"].items()
    monkeypatch.setitem(benchmarks.BENCHMARKS, key, row)
    (here / "data" / "eval").mkdir(parents=True)
    (here / "my.jsonl").rename(here / "data" / row.file)
    assert len(load_benchmark(key, str(here / "data"))) == row.problems
    assert (benchmark_label(key), benchmark_key("my sums")) == ("My sums", key)
    assert "eval/my.jsonl" in trb_shows(capsys, "list", "benchmarks")


def test_the_example_of_a_grader_judges_the_benchmark_that_names_it(here: Path) -> None:
    setup = load_experiment(here / "choices.yaml").setups["arithmetic"]
    run = setup.evaluation.benchmarks["choices"]
    golds = [problem.gold for problem in load_benchmark("choices", None, run)]
    assert [gold and (gold.answer, gold.judge) for gold in golds] == [
        ("C", "letters:judge"),
        ("B", "letters:judge"),
    ]
    assert golds[0] is not None
    with Grader() as grader:
        grades = grader.grade_many(
            (golds[0], text) for text in (r"\boxed{(c).}", r"\boxed{A or C}", "C")
        )
    assert [(grade.correct, grade.extracted) for grade in grades] == [
        (True, "(c)."),
        (False, "A or C"),
        (False, None),
    ]


def test_the_example_of_a_tracker_shows_units_and_results(here: Path) -> None:
    experiment = load_experiment(here / "watched.yaml")
    units = [unit for unit in expand(experiment) if unit.is_trial]
    write_run(here / "runs", experiment, units[0], {20: [1, 2]}, steps=25, done=False)
    said: list[str] = []
    mirror = Mirror(Study(experiment, units, here / "runs"), "trb submit", said.append)
    with mirror.following():
        mirror.announce()
    mirror.catch_up({"results": (["Method", "Avg"], [["Vanilla", 37.5]])}, [])
    assert len(said) == 2
    assert str(here / "runs" / "board") in said[0]
    shown = {file.stem: file.read_text() for file in (here / "runs" / "board").iterdir()}
    state, score = shown.pop(units[0].id).splitlines()
    assert state.endswith("interrupted")
    assert score == "after 20 updates: 0.375"
    assert list(shown.values()) == ["{'Method': 'Vanilla', 'Avg': 37.5}\n"]


def test_the_example_of_a_method_needs_no_other_edit(
    added_method: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its row and its law alone: training, status, table, figures and W&B's panels show it."""
    rows = {"vanilla": {}, "teacher_nucleus": {"mass": [0.8, 0.99], "K": 2}}
    keys = {"training": {"steps": 4, "checkpoint_every": 4}, "evaluation": {"rescore": False}}
    path, runs = write_experiment(tmp_path, rows, **keys), tmp_path / "runs"
    run_without_ray(path, runs)
    files = [str(path), "--runs", str(runs)]
    units = json.loads(trb_shows(capsys, "status", *files, "--json"))["units"]
    assert {unit["state"] for unit in units} == {"done"}
    [strong] = [unit["id"] for unit in units if unit["label"] == "Nucleus mass=0.99 K=2"]
    logged = [set(row) - {"step"} for row in RunReader(runs, strong).metrics()]
    assert logged == [columns_of_step(step < 2, ("behavior_kl",)) for step in range(4)]
    table = json.loads(trb_shows(capsys, "table", *files, "--format", "json"))
    assert [row["method"] for row in table["rows"]] == ["vanilla", "teacher_nucleus", "base"]
    trb_shows(capsys, "figures", *files, "--out", str(tmp_path / "figures"))
    drawn = {file.stem for file in (tmp_path / "figures").glob("*.png")}
    assert {"sweep-tiny", "diagnostics-tiny"} <= drawn
    panels = trb_shows(capsys, "dashboard", *files, "--dry-run")
    assert '"train/behavior_kl"' in panels
    assert '"train/beta"' not in panels


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_of_the_pages(
    page: Path,
    here: Path,
    added_method: dict[str, Any],
    finished: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In a clone with a finished quickstart, whose rates and results every command meets."""
    shutil.copytree(finished, here / "runs")
    for line in dict.fromkeys(commands(page)):
        words = ["runs" if word == "/shared/runs" else word for word in shlex.split(line)[1:]]
        cli.parse(cli.trb_parser(), words)
        if words[0] in RUN_HERE:
            assert trb_shows(capsys, *words), line


def test_commands_in_sentences_are_commands() -> None:
    known = dict(parsers(cli.trb_parser()))
    wrong = []
    for page in PAGES:
        for command, *words in mentioned(page):
            options = known[f"trb {command}"]._option_string_actions
            for word in words:
                if word.startswith("-") and word not in options:
                    wrong.append((page.name, command, word))
    assert wrong == []


def test_every_page_has_files_and_commands() -> None:
    for page in (OUT_OF_DOMAIN, *EXTENDING):
        assert examples(page, "file")
        assert any(line.split()[1] in RUN_HERE for line in commands(page))


# --- links ---


def test_the_index_has_every_page() -> None:
    linked = set(re.findall(r"\]\(([^)#]+)\)", (DOCS / "README.md").read_text("utf-8")))
    assert {page.name for page in DOCS.glob("*.md")} - linked == {"README.md"}


def test_links_lead_to_files() -> None:
    broken = []
    for page in LINKED:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
            # Links to headings are not checked, so there are none.
            if "#" in target or not (
                re.match(r"[a-z]+:", target) or (page.parent / target).exists()
            ):
                broken.append((page.name, target))
    assert broken == []


# --- the command's own help ---


def parsers(
    parser: argparse.ArgumentParser, name: str = "trb"
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The parser of `trb`, of each command and of each command's own commands, by name."""
    yield name, parser
    if isinstance(parser, Parser):
        parser.fill()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command, own in action.choices.items():
                yield from parsers(own, f"{name} {command}")


def test_the_examples_of_the_help_are_commands(capsys: pytest.CaptureFixture[str]) -> None:
    epilog = trb_shows(capsys, "--help").partition("examples:")[2]
    lines = re.findall(r"^  (trb .*?)   .*$", epilog, flags=re.MULTILINE)
    assert lines
    for line in lines:
        cli.parse(cli.trb_parser(), shlex.split(line)[1:])


# --- quoted tables ---


@pytest.mark.parametrize(
    ("page", "heading", "sweep"),
    [
        (ROOT / "README.md", "## The result", "derailing-rates"),
        (DOCS / "read-the-table.md", "## Five seeds", "derailing-seeds"),
    ],
)
def test_the_headline_is_that_of_the_stored_results(page: Path, heading: str, sweep: str) -> None:
    """Files in `tests/quoted` have the records of `trb table --format json` of the sweeps that both
    pages quote.
    """
    stored = json.loads((ROOT / f"tests/quoted/{sweep}.json").read_text("utf-8"))
    text = page.read_text("utf-8").partition(heading)[2]
    for found in stored["confirmed"]:
        label = methods.method_label(found["method"])
        row = next(line for line in text.splitlines() if line.startswith(f"| {label}"))
        reach = found["ci_high"] - found["score"]
        assert f"| {tenths_text(found['score'])} ± {tenths_text(reach)} |" in row
        if found["minus_vanilla"] is not None:
            gap, low, high = (signed(found[f"minus_vanilla{end}"]) for end in ("", "_low", "_high"))
            assert f"| {gap} [{low}, {high}] |" in row
            quoted = row.rstrip(" |").rpartition("|")[2].strip()
            assert quoted in (f"{found['p_value']:.3f}", f"{found['p_value']:.2f}")
    for found in stored["selected"]:
        if found["method"] == methods.BASE:
            continue
        label = methods.method_label(found["method"])
        row = next(line for line in text.splitlines() if line.startswith(f"| {label}"))
        assert f"| {tenths_text(found['score'])} " in row, "what the setting was chosen by"


def test_the_pairs_of_the_map_are_those_of_the_stored_results() -> None:
    """The records of `trb table --format json` of `experiments/derailing-pairs.yaml`."""
    stored = json.loads((ROOT / "tests/quoted/derailing-pairs.json").read_text("utf-8"))
    page = (DOCS / "map.md").read_text("utf-8").partition("| pair |")[2]
    _, *rows = [line.strip("| ").split(" | ") for line in page.splitlines()[1:10]]
    confirmed = {(found["setup"], found["method"]): found for found in stored["confirmed"]}
    base = {f["setup"]: f["score"] for f in stored["selected"] if f["method"] == methods.BASE}
    for number in range(1, 7):
        of = {m: confirmed[f"pair-{number}", m] for m in ("vanilla", "trust_region")}
        expected = [tenths_text(base[f"pair-{number}"])]
        for found in of.values():
            rate = float(found["setting"].rpartition("lr=")[2])
            expected += [tenths_text(found["score"]), f"{rate:.0e}".replace("e-0", "e-")]
        gap = of["trust_region"]
        ends = (signed(gap[f"minus_vanilla{end}"]) for end in ("", "_low", "_high"))
        expected.append("{} [{}, {}]".format(*ends))
        assert rows[number - 1][1:] == expected
    [mean] = stored["across"]
    ends = [signed(mean[f"minus_vanilla{end}"]) for end in ("", "_low", "_high")]
    elsewhere = [signed(mean[f"elsewhere_{end}"]) for end in ("low", "high")]
    assert rows[6][-1].rpartition("| ")[2] == "{} [{}, {}]".format(*ends)
    assert rows[7][-1].rpartition("| ")[2] == "[{}, {}]".format(*elsewhere)
    result = " ".join((ROOT / "README.md").read_text("utf-8").split())
    assert "mean is {}, and over pairs like these [{}, {}]".format(ends[0], *elsewhere) in result


def test_the_table_of_choices_is_that_of_the_stored_results() -> None:
    """The records of `trb table --by setting --format json` of `paper-choices-small`."""
    stored = json.loads((ROOT / "tests/quoted/paper-choices-small.json").read_text("utf-8"))
    page = (DOCS / "paper-choices.md").read_text("utf-8").partition("| objective |")[2]
    rows = [line.strip("| ").split(" | ") for line in page.splitlines()[2:6]]
    quoted = {row[0]: row[1:] for row in rows}
    seen = 0
    for found in stored["settings"]:
        if found["method"] == methods.BASE:
            continue
        words = dict(word.split("=") for word in found["setting"].split())
        place = ("", "restart", "continue").index(words.get("after", ""))
        reach = found["ci_high"] - found["score"]
        shown = f"{tenths_text(found['score'])} ± {tenths_text(reach)}"
        assert quoted[words["objective"]][place] == shown
        seen += 1
    assert seen == 12


def test_the_table_of_rates_is_that_of_the_stored_results() -> None:
    """The records of `trb table --by setting --format json` of the same sweep."""
    stored = json.loads((ROOT / "tests/quoted/derailing-rates.json").read_text("utf-8"))
    page = (DOCS / "read-the-table.md").read_text("utf-8")
    table = page.partition("### What the headline owes")[2].partition("| rate |")[2]
    heading, _, *rows = [line.strip("| ").split(" | ") for line in table.splitlines()[:6]]
    for found in stored["settings"]:
        if found["method"] == methods.BASE:
            continue
        place = 1 + heading.index(methods.method_label(found["method"]))
        rate = float(found["setting"].rpartition("lr=")[2])
        [row] = [row for row in rows if float(row[0].partition(",")[0]) == rate]
        reach = found["ci_high"] - found["score"]
        assert row[place] == f"{tenths_text(found['score'])} ± {tenths_text(reach)}"
