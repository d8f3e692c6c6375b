"""The SGLang engine against transformers, exact laws, and its own death."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy import stats

from orchestrator.engines.common.causal import CausalModel, log_probs_of
from orchestrator.engines.common.tensor_digests import digests_of
from orchestrator.engines.interface import Job, Limits, WeightsRef
from orchestrator.engines.sglang import engine as module
from orchestrator.engines.sglang.engine import SglangEngine, SglangSampler
from orchestrator.errors import NotFinite, WrongWeights
from orchestrator.policy.laws import law
from orchestrator.policy.randomness import Purpose, SequenceKey
from orchestrator.policy.spec import Behavior, Student, Tempered
from orchestrator.rollouts import Request, Rollouts, concatenate, in_order
from orchestrator.workers.canary import canary, canary_ids, check_numbers, check_tensors
from tests import tiny
from tests.engines.installed import skip_without
from tests.sweeps import ROOT

pytestmark = [pytest.mark.engines, pytest.mark.xdist_group("sglang")]

PROMPTS = (*tiny.PROMPTS, (1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2), (4,))
MAX_TOKENS, TOP_K = 12, 4


@torch.no_grad()
def log_p_after(causal: CausalModel, prompt: tuple[int, ...], response: list[int]) -> torch.Tensor:
    """Canonical log-probabilities (T, V) before each token of a response, in one pass of
    transformers.
    """
    row = torch.tensor([[*prompt, *response]])
    logits = causal.model(input_ids=row).logits[0, len(prompt) - 1 : -1]
    return causal.log_prob(logits)


def check_against(causal: CausalModel, behavior: Behavior, rollouts: Rollouts) -> None:
    """Every number of the rollouts is what transformers say of their tokens."""
    for row, request in enumerate(rollouts.requests):
        response = rollouts.response(row)
        count = len(response)
        log_p = log_p_after(causal, request.prompt_ids, response)
        log_mu = law(behavior, log_p, None).log_mu
        tokens = torch.tensor(response)[:, None]
        for found, expected in ((rollouts.student_BT, log_p), (rollouts.behavior_BT, log_mu)):
            torch.testing.assert_close(
                found[row, :count], expected.gather(1, tokens)[:, 0], atol=1e-4, rtol=0
            )
        support = rollouts.support_ids_BTK[row, :count]
        torch.testing.assert_close(
            log_p.gather(1, support), log_p.topk(TOP_K).values, atol=1e-4, rtol=0
        )


@pytest.mark.parametrize("behavior", [Student(), Tempered(0.7)], ids=["student", "tempered"])
def test_a_ragged_batch_says_what_transformers_say(
    sglang: SglangEngine, behavior: Behavior
) -> None:
    requests = tiny.requests(4, PROMPTS)
    sampled = concatenate(
        list(sglang.sampler().sample(requests, behavior, Limits(MAX_TOKENS, TOP_K)))
    )
    rollouts = in_order(sampled, requests)
    assert rollouts.requests == requests
    check_against(tiny.student(), behavior, rollouts)
    ended = 0
    for row in range(len(requests)):
        response = rollouts.response(row)
        assert 1 <= len(response) <= MAX_TOKENS
        assert not any(token >= tiny.VALID or token == tiny.TEACHER_EOS for token in response)
        assert tiny.STUDENT_EOS not in response[:-1]
        ended += response[-1] == tiny.STUDENT_EOS
        assert bool(rollouts.truncated_B[row]) == (response[-1] != tiny.STUDENT_EOS)
        assert response[-1] == tiny.STUDENT_EOS or len(response) == MAX_TOKENS
    assert 0 < ended < len(requests)


def test_the_teacher_answers_with_both_of_its_stops_as_one(sglang: SglangEngine) -> None:
    requests = tiny.requests(8, PROMPTS)
    sampler = sglang.sampler("teacher")
    rollouts = concatenate(list(sampler.sample(requests, Student(), Limits(MAX_TOKENS, TOP_K))))
    check_against(tiny.teacher(), Student(), rollouts)
    ended = [rollouts.response(row)[-1] == tiny.STUDENT_EOS for row in range(len(requests))]
    assert any(ended)
    sampler.release()


@pytest.mark.parametrize("behavior", [Student(), Tempered(0.7)], ids=["student", "tempered"])
def test_short_sequences_have_their_exact_law(sglang: SglangEngine, behavior: Behavior) -> None:
    """All sequences of up to two tokens, counted in 6,000 samples, against their probabilities
    under transformers.
    """
    prompt, draws = PROMPTS[1], 6000
    requests = [
        Request(prompt, SequenceKey(Purpose.EVALUATION, 7, 0, 0, index)) for index in range(draws)
    ]
    found: Counter[tuple[int, ...]] = Counter()
    for rollouts in sglang.sampler().sample(requests, behavior, Limits(2)):
        found.update(tuple(rollouts.response(row)) for row in range(len(rollouts.requests)))
    assert found.total() == draws
    ordinary = [
        token for token in range(tiny.VALID) if token not in (tiny.STUDENT_EOS, tiny.TEACHER_EOS)
    ]
    sequences = [(tiny.STUDENT_EOS,), *itertools.product(ordinary, [*ordinary, tiny.STUDENT_EOS])]
    probabilities = []
    for sequence in sequences:
        log_mu = law(behavior, log_p_after(tiny.student(), prompt, list(sequence)), None).log_mu
        probabilities.append(float(log_mu.gather(1, torch.tensor(sequence)[:, None]).sum().exp()))
    assert sum(probabilities) == pytest.approx(1, abs=1e-5)
    assert set(found) <= set(sequences)
    often = [
        (found[s], draws * p)
        for s, p in zip(sequences, probabilities, strict=True)
        if draws * p >= 5
    ]
    rest = draws - sum(count for count, _ in often), draws - sum(expected for _, expected in often)
    counts, expectations = zip(*often, rest, strict=True)
    assert stats.chisquare(counts, expectations, sum_check=False).pvalue > 1e-4


def test_weights_are_swapped_in_place_and_torn_ones_are_seen(
    sglang: SglangEngine, job: Job, tmp_path: Path
) -> None:
    sampler, student = sglang.sampler(), tiny.student()
    sampler.start(teacher=False)
    ids = canary_ids(job.setup)
    before = sampler.log_probs(ids)
    assert before == pytest.approx(log_probs_of(student, ids), abs=1e-4)
    process = sampler._process
    assert process is not None
    pid = process.pid
    with torch.no_grad():
        for parameter in student.model.parameters():
            parameter.mul_(1.3)
    swapped = {name: parameter.detach() for name, parameter in student.model.named_parameters()}
    sequences = [ids, ids[::-1]]
    expected = [log_probs_of(student, each) for each in sequences]
    written = canary(sequences, expected, digests_of(swapped.items()))

    def check() -> None:
        check_tensors(written, sampler.digests())
        check_numbers(written, sampler.log_probs_each(sequences), "float32")

    sampler.load(WeightsRef(1, swapped))
    assert sampler.digests() == written["tensors"], "each tensor, the fused ones in their parts"
    check()
    requests = tiny.requests(2)
    check_against(
        student,
        Student(),
        concatenate(list(sampler.sample(requests, Student(), Limits(MAX_TOKENS, TOP_K)))),
    )
    # Half of the tensors from before: plausible samples, wrong ones.
    first = {
        name: parameter.detach() for name, parameter in tiny.student().model.named_parameters()
    }
    torn = {name: swapped[name] if index % 2 else first[name] for index, name in enumerate(swapped)}
    sampler.load(WeightsRef(2, torn))
    with pytest.raises(WrongWeights, match="not the checkpoint's"):
        check()
    # A folder, as evaluators load it.
    student.model.save_pretrained(tmp_path / "checkpoint")
    sampler.load(WeightsRef(3, tmp_path / "checkpoint"))
    check()
    assert process.pid == pid, "one process all along"
    sampler.load(WeightsRef(0, first))
    assert sampler.log_probs(ids) == pytest.approx(before, abs=1e-6)


def scheduler_of(sampler: SglangSampler) -> int:
    """The process that SGLang decodes in."""
    process = sampler._process
    assert process is not None
    group = process.pid
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command, pid = (entry / "cmdline").read_text(), int(entry.name)
            if os.getpgid(pid) == group and command.startswith("sglang::scheduler"):
                return pid
        except (FileNotFoundError, ProcessLookupError):
            continue
    raise AssertionError("no scheduler")


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_an_engine_that_is_lost_in_the_middle_is_replaced(
    sglang: SglangEngine, sent: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes back in the weights that it had, and every request has one response."""
    sampler = sglang.sampler()
    with torch.no_grad():
        student = tiny.student()
        for parameter in student.model.parameters():
            parameter.mul_(1.2)
    sampler.load(
        WeightsRef(
            1, {name: parameter.detach() for name, parameter in student.model.named_parameters()}
        )
    )
    monkeypatch.setattr(module, "PART", 4)
    if sent == signal.SIGSTOP:
        monkeypatch.setattr(module, "silence_s", lambda call: 5.0)
    requests = tiny.requests(20, PROMPTS)
    parts = []
    for part in sampler.sample(requests, Student(), Limits(40, TOP_K, at_once=4)):
        if not parts:
            os.kill(scheduler_of(sampler), sent)
        parts.append(part)
    rollouts = in_order(concatenate(parts), requests)
    assert rollouts.requests == requests
    check_against(student, Student(), rollouts)


def test_broken_weights_are_not_sampled_from(sglang: SglangEngine) -> None:
    sampler, student = sglang.sampler(), tiny.student()
    good = {name: parameter.detach() for name, parameter in student.model.named_parameters()}
    name = "model.norm.weight"
    sampler.load(WeightsRef(1, {**good, name: torch.full_like(good[name], torch.nan)}))
    with pytest.raises(NotFinite, match="the student's logits are not finite"):
        list(sampler.sample(tiny.requests(1), Student(), Limits(4)))
    sampler.load(WeightsRef(0, good))
    assert len(list(sampler.sample(tiny.requests(1), Student(), Limits(4)))) == 1


def test_silence_is_judged_by_the_work(job: Job) -> None:
    request = tiny.requests(1)[0]
    ask = module.Ask(0, request.prompt_ids, module.Draw(0, len(request.prompt_ids)))
    few, many = (
        module.Generate([replace(ask, index=i) for i in range(n)], 8, (), None) for n in (1, 200)
    )
    assert module.PATIENCE_S < module.silence_s(few) < module.silence_s(many)


def test_nothing_listens_beyond_loopback(sglang: SglangEngine) -> None:
    sampler = sglang.sampler()
    sampler.start(teacher=False)
    process = sampler._process
    assert process is not None
    assert process.pid is not None
    inodes = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if os.getpgid(int(entry.name)) == process.pid:
                    links = [os.readlink(link) for link in (entry / "fd").iterdir()]
                    inodes |= {link[8:-1] for link in links if link.startswith("socket:[")}
    listening = []
    for kind in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                listening.append(fields[1].partition(":")[0])
    assert listening, "SGLang's processes meet over sockets"
    assert set(listening) == {"0100007F"}


WORKER = """
import sys, time
from pathlib import Path
from orchestrator.engines.sglang.engine import open_engine
from orchestrator.workers.members import job_of
from tests import tiny
from tests.sweeps import ROOT
sampler = open_engine(job_of(tiny.worker_spec(Path(sys.argv[1])))).sampler()
sampler.start(teacher=False)
print(sampler._process.pid, flush=True)
time.sleep(600)
"""


def test_an_engine_ends_with_its_worker(job: Job) -> None:
    """Even where it is frozen: a GPU's memory would stay taken."""
    skip_without("sglang")
    command = [sys.executable, "-c", WORKER, str(Path(job.initial.path).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as worker:
        assert worker.stdout is not None
        group = int(worker.stdout.readline())
        processes = [
            pid
            for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
            if group_of(pid) == group
        ]
        assert len(processes) >= 3
        for pid in processes:
            if pid != group:
                os.kill(pid, signal.SIGSTOP)
        worker.kill()
        deadline = time.monotonic() + 120
        while any(group_of(pid) == group for pid in processes):
            assert time.monotonic() < deadline, "the engine outlives its worker"
            time.sleep(0.2)


def group_of(pid: int) -> int | None:
    """The process group of a process that runs; None of one that is gone."""
    with suppress(OSError):
        if (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
            return os.getpgid(pid)
    return None
