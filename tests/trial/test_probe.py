"""The probe continues the right prefixes with the right model, counts every answer once, and
survives kills.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.config import Experiment
from orchestrator.data.problems import Problem
from orchestrator.data.training_set import TrainingPrompt, TrainingSet
from orchestrator.engines.interface import Owner
from orchestrator.engines.torch.decoding import Decoding, generate
from orchestrator.errors import UserError
from orchestrator.experiment.load import load_experiment
from orchestrator.experiment.probe import BEHAVIORS, CONTINUERS, LOGS, probe_unit
from orchestrator.grading.grader import Grade, Grader
from orchestrator.grading.notation import last_boxed
from orchestrator.liveness.leases import Lease
from orchestrator.policy.randomness import Purpose, Role, SequenceKey, uniforms
from orchestrator.policy.spec import Student
from orchestrator.records.rundir import RunReader
from orchestrator.records.writer import RunWriter
from orchestrator.rollouts import Request, Rollouts, TeacherScores
from orchestrator.sweep import prepare
from orchestrator.trial import probe as continuation
from orchestrator.trial.probe import ContinuationProbe, ProbeOutcome, ProbeSource
from orchestrator.trial.training_loop import TrainingStep, Trial
from orchestrator.workers.roles import Inline
from orchestrator.workers.spec import WorkerSpec
from tests.probes import LIMIT, SIZES, run_probe, write_probe
from tests.sweeps import ROOT, contents, environment, trb_shows
from tests.without_ray import made_here

pytestmark = pytest.mark.xdist_group("probe")
PROMPTS, PREFIXES, CONTINUATIONS = SIZES["prompts"], SIZES["prefixes"], SIZES["continuations"]
LENGTHS = (3, 12)
# The command killed after some appends to its logs: argv[1] says after how many, with commas
# between the numbers, and argv[2] the folder of their runs. Each is a fork of a process that has
# imported everything.
KILLED = """
import os, signal, sys
from orchestrator.records import writer

class Mortal(writer.RunWriter):
    appends, last = 0, 0
    def append(self, log, rows):
        super().append(log, rows)
        Mortal.appends += 1
        if Mortal.appends == Mortal.last:
            os.kill(os.getpid(), signal.SIGKILL)

writer.RunWriter = Mortal
import orchestrator.trial.probe
from orchestrator import cli
for last in sys.argv[1].split(","):
    child = os.fork()
    if child == 0:
        Mortal.last = int(last)
        cli.main([*sys.argv[3:], "--runs", os.path.join(sys.argv[2], last)])
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
        sys.exit(f"after {last}: status {status}")
"""
# Before the first commit (after 6 appends), and between the first and the second.
KILLED_AFTER = (3, 9)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of an experiment whose probe is done."""
    path = write_probe(tmp_path_factory.mktemp("probe"))
    made_here(load_experiment(path), path.parent / "runs")
    run_probe(path)
    return path


def finished(path: Path, *overrides: str) -> RunReader:
    runs = path.parent / "runs"
    return RunReader(runs, probe_unit(run_probe(path, *overrides), "tiny", runs).id)


def spec_of(path: Path, experiment: Experiment) -> WorkerSpec:
    runs = path.parent / "runs"
    pairs = prepare.prepare(experiment.setups, runs, lambda *_: None)
    return prepare.worker_spec(
        probe_unit(experiment, "tiny", runs), experiment, runs, pairs["tiny"]
    )


@pytest.fixture
def probe(path: Path, tmp_path: Path) -> Iterator[ContinuationProbe]:
    """A probe of its own, with the models of `path`."""
    spec = spec_of(path, run_probe(path))
    with closing(RunWriter(tmp_path, spec.unit.id, LOGS)) as run, Grader() as grader:
        yield ContinuationProbe(spec, run, grader)


def rows_of(path: Path, log: str = "continuations.jsonl", **where: Any) -> list[dict[str, Any]]:
    """The rows of a log of the finished probe that have these values."""
    rows = finished(path).committed(log)
    return [row for row in rows if where.items() <= row.items()]


# --- what is counted ---


def test_every_prompt_is_counted_once_in_every_cell(path: Path) -> None:
    rows = rows_of(path)
    keys = [(row["continuer"], row["t"], row["behavior"], row["prompt"]) for row in rows]
    assert sorted(keys) == sorted(product(CONTINUERS, LENGTHS, BEHAVIORS, range(PROMPTS)))
    for row in rows:
        assert (row["prefixes"], row["n"]) == (PREFIXES, PREFIXES * CONTINUATIONS)
        for name in ("correct", "truncated", "no_answer", "timed_out"):
            assert 0 <= row[name] <= row["n"]
        assert row["correct"] <= row["n"] - row["no_answer"]


def test_both_kinds_of_success_occur(path: Path) -> None:
    """Else the tests below would compare zeros."""
    for continuer, behavior in product(CONTINUERS, BEHAVIORS):
        rows = rows_of(path, continuer=continuer, behavior=behavior)
        assert any(row["correct"] for row in rows)
    rows = rows_of(path)
    assert 0 < sum(row["finished"] for row in rows) < len(rows) * PREFIXES


def test_finished_rollouts_are_those_that_ended_within_the_length(path: Path) -> None:
    rollouts = rows_of(path, "rollouts.jsonl")
    assert len(rollouts) == len(BEHAVIORS) * PROMPTS * PREFIXES
    for row in rows_of(path):
        where = {"behavior": row["behavior"], "prompt": row["prompt"]}
        own = [r for r in rollouts if where.items() <= r.items()]
        ended = [r for r in own if r["length"] <= row["t"] and not r["truncated"]]
        assert row["finished"] == len(ended)
        if len(ended) == PREFIXES:
            assert row["correct"] == CONTINUATIONS * sum(r["reward"] for r in ended)
            assert row["truncated"] == 0


def test_a_budget_of_nothing_gains_nothing(path: Path) -> None:
    """Where both behaviors have the same prefixes, they have the same outcomes, answer by answer."""
    sides: dict[str, list[dict[str, Any]]] = {behavior: [] for behavior in BEHAVIORS}
    for row in finished(path, "probe.epsilon=1e-12").committed("continuations.jsonl"):
        sides[row.pop("behavior")].append(row)
    vanilla, blended = BEHAVIORS
    assert sides[vanilla] == sides[blended] != []
    own = [row["correct"] for row in rows_of(path, behavior=vanilla)]
    assert own != [row["correct"] for row in rows_of(path, behavior=blended)]


def fabricated(
    probe: ContinuationProbe, tokens: list[list[int]], lengths: list[int], grades: list[Grade]
) -> ProbeSource:
    """Rollouts of the first prompt with the given tokens."""
    prompt = probe.prompts[0][1]
    requests = [
        Request(prompt.ids, SequenceKey(Purpose.TRAINING, 0, 0, 0, i)) for i in range(len(tokens))
    ]
    zeros = torch.zeros(len(tokens), len(tokens[0]))
    ids = torch.tensor(tokens)
    rollouts = Rollouts(
        requests, ids, torch.tensor(lengths), ids[:, 0] < 0, zeros, zeros, zeros[:, :, None].long()
    )
    return ProbeSource(
        rollouts, TeacherScores(zeros[:, :, None], zeros, zeros, zeros), [""] * len(tokens), grades
    )


def test_cutting(probe: ContinuationProbe) -> None:
    """A rollout that ends at t is over; one that ends later is cut there, whatever lies beyond."""
    right, wrong, none = Grade(True, "1"), Grade(False, "2"), Grade(False, None)
    eos = 45
    tokens = [[1, 2, eos, 0], [1, 2, 3, eos], [1, eos, 0, 0], [4, 5, 6, 7]]
    cuts = probe.cut(fabricated(probe, tokens, [3, 4, 2, 4], [right, wrong, none, wrong]), 3)
    prompt = probe.prompts[0][1].ids
    assert [len(cut.requests) for cut in cuts] == [0, CONTINUATIONS, 0, CONTINUATIONS]
    assert {request.prompt_ids for request in cuts[1].requests} == {(*prompt, 1, 2, 3)}
    late = ProbeOutcome(Grade(False, None, timed_out=True), True)
    outcomes = dict.fromkeys(cuts[1].requests, ProbeOutcome(right, False))
    outcomes |= dict.fromkeys(cuts[3].requests, late)
    assert probe.counts(cuts, outcomes) == {
        "prefixes": 4,
        "finished": 2,
        "n": 4 * CONTINUATIONS,
        "correct": 2 * CONTINUATIONS,
        "truncated": CONTINUATIONS,
        "no_answer": 2 * CONTINUATIONS,
        "timed_out": CONTINUATIONS,
    }


# --- what is sampled ---


def test_its_rollouts_are_those_training_begins_with(probe: ContinuationProbe, path: Path) -> None:
    spec = probe.spec
    data = TrainingSet([prompt for _, prompt in probe.prompts], 0, {}, {})
    training = TrainingStep(Trial(spec, probe.run, Inline(spec)), data)
    expected = training.requests(0, data.batch(0, spec.setup.training.prompts_per_step))
    source = probe.sample(probe.prompts[:4], Student())
    assert source.rollouts.requests == expected
    rows = rows_of(path, "rollouts.jsonl", behavior="vanilla")[: len(expected)]
    assert [row["length"] for row in rows] == source.rollouts.lengths_B.tolist()
    assert [row["reward"] for row in rows] == source.rewards


@pytest.mark.parametrize("continuer", CONTINUERS)
def test_each_continuation_is_its_continuers(probe: ContinuationProbe, continuer: Owner) -> None:
    """Against one sequence at a time, graded by comparing the boxed number."""
    prompts = probe.prompts[:6]
    cuts = {"vanilla": probe.cut(probe.sample(prompts, Student()), 3)}
    outcomes = probe.outcomes(cuts, continuer, 3)
    assert len(outcomes) == sum(len(cut.requests) for cut in cuts["vanilla"]) > 0
    model = getattr(probe.engine.store, continuer)
    golds = {index: prompt.problem.gold for index, prompt in prompts}
    for request, outcome in outcomes.items():
        alone = generate(model, None, [request], Student(), Decoding(LIMIT - 3))
        text = probe.text([*request.prompt_ids[-3:], *alone.response(0)])
        gold = golds[request.key.prompt]
        assert gold is not None
        assert outcome.grade.extracted == last_boxed(text)
        assert outcome.grade.correct == (last_boxed(text) == gold.answer)
        assert outcome.truncated == bool(alone.truncated_B[0])
        assert int(alone.lengths_B[0]) <= LIMIT - 3


def test_continuations_draw_on_their_own(probe: ContinuationProbe) -> None:
    """No continuation shares a stream with a rollout, another continuation or another length."""
    source = probe.sample(probe.prompts[:3], Student())
    keys = [request.key for request in source.rollouts.requests]
    for cut in (*probe.cut(source, 1), *probe.cut(source, 3)):
        keys += [request.key for request in cut.requests]
    first = uniforms(keys, Role.DRAFT, 4)
    assert len(first.unique(dim=0)) == len(keys) == 6 + 2 * 6 * CONTINUATIONS


@pytest.mark.parametrize("size", [1, 7])
def test_batching_changes_nothing(
    probe: ContinuationProbe, monkeypatch: pytest.MonkeyPatch, size: int, path: Path
) -> None:
    source = probe.sample(probe.prompts[:4], Student())
    requests = [request for cut in probe.cut(source, 3) for request in cut.requests]
    whole = probe.generate("teacher", requests, 3)
    longest = max(len(request.prompt_ids) for request in requests)
    monkeypatch.setattr(continuation, "PREFIX_TOKENS", size * longest)
    parts = probe.generate("teacher", requests, 3)
    for row in range(len(requests)):
        assert parts.response(row) == whole.response(row)


def test_prompts_without_a_gold_are_passed_over(
    probe: ContinuationProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = [prompt for _, prompt in probe.prompts]
    unknown = TrainingPrompt(Problem("?", "?", None), (1,))
    del probe.prompts
    data = TrainingSet([unknown, known[0], unknown, *known[1:]], 0, {}, {})
    monkeypatch.setattr(continuation, "load_training_set", lambda *_: data)
    assert [index for index, _ in probe.prompts] == [1, *range(3, PROMPTS + 2)]


def test_too_few_prompts(path: Path) -> None:
    with pytest.raises(
        UserError,
        match=r"probe\.prompts: 41: expected ≤ 40, the number of training prompts with a gold",
    ):
        run_probe(path, "probe.prompts=41")


# --- the run directory ---


@pytest.fixture(scope="module")
def killed(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs folder of each kill, by the number of appends before it."""
    folder = tmp_path_factory.mktemp("killed")
    for appends in KILLED_AFTER:
        shutil.copytree(path.parent / "runs" / "models", folder / str(appends) / "models")
    numbers = ",".join(map(str, KILLED_AFTER))
    command = [sys.executable, "-c", KILLED, numbers, str(folder), "probe", "continuation", path]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("appends", KILLED_AFTER)
def test_a_kill_leaves_no_trace(
    path: Path, killed: Path, appends: int, capsys: pytest.CaptureFixture[str]
) -> None:
    run, runs = finished(path), killed / str(appends)
    left = RunReader(runs, run.unit_id)
    assert (left.next_step, left.trained) == (appends // 6, False)
    assert (left.path / "rollouts.jsonl").stat().st_size > 0
    trb_shows(capsys, "probe", "continuation", path, "--runs", runs)
    assert made_by(runs, run.unit_id) == made_by(path.parent / "runs", run.unit_id)


def made_by(runs: Path, unit_id: str) -> dict[str, str]:
    """Path → sha256 of a probe's files, without the one that tells of the source tree and not of
    the probe.
    """
    found = {name: sha for name, sha in contents(runs).items() if name.startswith(unit_id)}
    assert found.pop(f"{unit_id}/provenance.json")
    return found


def test_only_one_process_at_a_time(path: Path) -> None:
    experiment = run_probe(path)
    unit = probe_unit(experiment, "tiny", path.parent / "runs")
    (path.parent / "runs" / unit.id / "DONE").rename(path.parent / "kept")
    held = Lease(path.parent / "runs" / ".locks" / f"{unit.id}.lock")
    try:
        with pytest.raises(UserError, match=f"{unit.id} is being run by process"):
            run_probe(path)
    finally:
        held.release()
        (path.parent / "kept").rename(path.parent / "runs" / unit.id / "DONE")


def test_a_finished_probe_is_not_touched(path: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in finished(path).path.iterdir()}
    assert {"DONE", "config.json", "provenance.json", "example.json", "excerpts.json", *LOGS} <= {
        f.name for f in before
    }
    run_probe(path)
    assert {file: file.stat().st_mtime_ns for file in finished(path).path.iterdir()} == before


def test_excerpts_are_rollouts_of_the_probe(path: Path) -> None:
    run = finished(path)
    excerpts = run.document("excerpts.json")
    assert len(excerpts) == 8
    for index, excerpt in enumerate(excerpts):
        left, right = excerpt["prompt"].removesuffix("=?"), excerpt["gold"]
        assert sum(map(int, left.split("+"))) == int(right)
        for behavior in BEHAVIORS:
            where = {"behavior": behavior, "prompt": index, "sample": 0}
            (row,) = rows_of(path, "rollouts.jsonl", **where)
            assert excerpt[behavior]["length"] == row["length"]
            assert excerpt[behavior]["truncated"] == row["truncated"]
            assert excerpt[behavior]["correct"] == bool(row["reward"])
            assert excerpt[behavior]["mean_teacher_log_prob"] == pytest.approx(
                row["teacher_log_prob"]
            )
            assert excerpt[behavior]["correct"] == (last_boxed(excerpt[behavior]["text"]) == right)


def test_the_command_prints_json_alone(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["probe", "continuation", path, "--runs", path.parent / "runs", "--json"]
    (found,) = json.loads(trb_shows(capsys, *asked))["probes"]
    assert (found["unit"], found["epsilon"], found["seed"]) == (finished(path).unit_id, 0.3, 0)
    cells = [(row["continuer"], row["t"]) for row in found["rows"]]
    assert cells == list(product(CONTINUERS, LENGTHS))
    for shown, behavior in product(found["rows"], BEHAVIORS):
        own = rows_of(path, continuer=shown["continuer"], t=shown["t"], behavior=behavior)
        for name in ("n", "correct", "finished", "prefixes", "no_answer"):
            assert shown[behavior][name] == sum(row[name] for row in own)
