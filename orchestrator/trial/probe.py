"""The continuation probe: prompts → rollouts of both behaviors → prefixes → continuations → grades.

A rollout has the key of optimizer step 0, so the probe looks at the very rollouts with which
training begins. Both behaviors use the same uniforms, and so do their continuations: if the
behaviors agree up to token t, their outcomes are equal. A rollout that ended within t tokens has no
prefix of that length. It keeps the grade of its finished answer, and counts as often as it would
have been continued.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from orchestrator.data.prompts import graded_text, response_text
from orchestrator.data.training_set import TrainingPrompt, load_training_set
from orchestrator.engines.common.causal import CausalModel, open_tokenizer
from orchestrator.engines.common.passes import padded
from orchestrator.engines.interface import Limits, Owner
from orchestrator.engines.torch.engine import TorchEngine
from orchestrator.errors import refuse
from orchestrator.experiment.methods import REFERENCE
from orchestrator.experiment.probe import (
    BEHAVIORS,
    CONTINUERS,
    DOCUMENTS,
    PROMPTS_AT_ONCE,
    truncation_lengths,
)
from orchestrator.grading.gold import Gold
from orchestrator.grading.grader import Grade, Grader, shared_grader
from orchestrator.policy import laws, speculation
from orchestrator.policy.randomness import Purpose, SequenceKey
from orchestrator.policy.spec import Behavior, Student, TrustRegion
from orchestrator.policy.vocabulary import NEG_INF
from orchestrator.records.writer import RunWriter
from orchestrator.rollouts import Request, Rollouts, TeacherScores, concatenate
from orchestrator.trial.diagnostics import rollout_rows
from orchestrator.workers.digests import digest_rollouts, digest_scores
from orchestrator.workers.members import job_of, support_size
from orchestrator.workers.spec import WorkerSpec

# --- makes the probe's documents: a prefix with solved trust regions, and prompt-matched rollouts ---


EXCERPTS = 8  # prompts
SHOWN_TOKENS = 10
PATH_STEPS = 50
# A prefix is worth showing if the student gives more than this many tokens more than this mass each,
# and the teacher's favourite is among them.
PLAUSIBLE_TOKENS = 3
PLAUSIBLE_MASS = 0.05
HEAD_CHUNK = 256  # positions whose full-vocabulary rows are held at once

Prompts = list[tuple[int, TrainingPrompt]]  # with their positions in the training order
Visited = tuple[tuple[int, ...], list[int]]  # token ids of a prompt and of the response to it


@dataclass(frozen=True)
class ProbeSource:
    """Graded rollouts of one behavior; each list has one entry per rollout."""

    rollouts: Rollouts
    scores: TeacherScores
    texts: list[str]
    grades: list[Grade]

    @property
    def rewards(self) -> list[float | None]:
        """1.0 or 0.0 for each rollout."""
        return [float(grade.correct) for grade in self.grades]

    def rows(self) -> list[dict[str, Any]]:
        """Rows of `rollouts.jsonl`, of step 0 and without texts."""
        digest = digest_rollouts(self.rollouts)
        scores = digest_scores(self.rollouts, self.scores)
        return rollout_rows(0, self.rollouts.requests, digest, scores, self.rewards, [])


def gold_of(prompt: TrainingPrompt) -> Gold:
    """The gold answer of a prompt; the probe takes no prompts without one."""
    assert prompt.problem.gold is not None
    return prompt.problem.gold


def excerpts(
    prompts: Prompts, sources: dict[str, ProbeSource], rows: Sequence[int]
) -> list[dict[str, Any]]:
    """The rollouts `rows`, one for each of the first prompts, of every behavior side by side."""
    documents: list[dict[str, Any]] = []
    for (_, prompt), row in zip(prompts, rows, strict=False):  # prompts outnumber rows
        document: dict[str, Any] = {"prompt": prompt.problem.text, "gold": gold_of(prompt).answer}
        for behavior, source in sources.items():
            length = int(source.rollouts.lengths_B[row])
            document[behavior] = {
                "text": source.texts[row],
                "correct": source.grades[row].correct,
                "length": length,
                "truncated": bool(source.rollouts.truncated_B[row]),
                "mean_teacher_log_prob": float(
                    source.scores.token_BT[row, :length].double().mean()
                ),
            }
        documents.append(document)
    return documents


@torch.no_grad()
def solved_example(
    student: CausalModel,
    teacher: CausalModel,
    visited: list[Visited],
    tokenizer: PreTrainedTokenizerBase,
    budgets: list[float],
) -> dict[str, Any]:
    """Solve every budget at the first visited prefix where the policies clearly differ.

    They clearly differ if KL(q‖p) is above the smallest budget, so that it binds, and above the
    median of all visited prefixes, and if the teacher favours one of several tokens that the
    student finds plausible. Without such a prefix, the one with the largest KL(q‖p) is taken.
    `path` holds pairs of β and KL(μ_β‖p) in nats.
    """
    row, position = _telling_prefix(student, teacher, visited, min(budgets))
    prompt, response = visited[row]
    end = (prompt, response[: position + 1])
    log_p = _last_log_probs(student, end)
    log_q = _last_log_probs(teacher, end)
    p = log_p.exp()
    q = log_q.exp()
    either = torch.maximum(p, q)
    shown = either.topk(min(SHOWN_TOKENS, int((either > 0).sum()))).indices
    path: list[list[float]] = []
    for step in range(PATH_STEPS + 1):
        beta = step / PATH_STEPS
        path.append([beta, _path_kl(log_p, log_q, beta)])
    solutions = []
    for epsilon in budgets:
        solved = laws.solve(log_p[None], log_q[None], epsilon)
        found = {"epsilon": epsilon, "beta": float(solved.beta), "kl": float(solved.kl)}
        solutions.append(found | {"mu": solved.log_mu[0].exp()[shown].tolist()})
    return {
        "prompt": _text(tokenizer, prompt),
        "prefix": _text(tokenizer, response[:position]),
        "tokens": [_text(tokenizer, [token]) for token in shown.tolist()],
        "p": p[shown].tolist(),
        "q": q[shown].tolist(),
        "solutions": solutions,
        "path": path,
        "kl_teacher": float(speculation.kl_divergence(log_q, log_p)),
    }


def _telling_prefix(
    student: CausalModel, teacher: CausalModel, visited: list[Visited], budget: float
) -> tuple[int, int]:
    """Index of a response, and of the position in it just after the chosen prefix."""
    places: list[tuple[int, int]] = []
    divergences: list[Tensor] = []
    torn: list[Tensor] = []
    for row, pair in enumerate(visited):
        for position in range(len(pair[1])):
            places.append((row, position))
        for log_p, log_q in zip(_log_probs(student, pair), _log_probs(teacher, pair), strict=True):
            divergences.append(speculation.kl_divergence(log_q, log_p).cpu())
            plausible = log_p.exp() > PLAUSIBLE_MASS
            favourite = plausible.gather(-1, log_q.argmax(-1, keepdim=True))[:, 0]
            torn.append((favourite & (plausible.sum(-1) > PLAUSIBLE_TOKENS)).cpu())
    kl = torch.cat(divergences)
    apart = (kl > kl.median()) & (kl > budget)
    telling = (apart & torch.cat(torn)).nonzero()[:, 0]
    return places[int(telling[0]) if len(telling) else int(kl.argmax())]


def _log_probs(model: CausalModel, pair: Visited) -> Iterator[Tensor]:
    """Yield canonical log-probabilities at the prefixes of one response, chunks of shape (N, V)."""
    hidden = model.predicting(padded([pair[0]], [pair[1]], model.device))
    for part in hidden.split(HEAD_CHUNK):
        yield model.log_prob(model.head(part))


def _last_log_probs(model: CausalModel, pair: Visited) -> Tensor:
    """Log-probabilities of the last token, of shape (V,)."""
    return list(_log_probs(model, pair))[-1][-1].double().log_softmax(-1)


def _path_kl(log_p: Tensor, log_q: Tensor, beta: float) -> float:
    """KL(μ_β‖p), μ_β ∝ p^(1−β) q^β (paper, Eq. 2)."""
    live = log_p > NEG_INF
    p, q = log_p[live], log_q[live]
    # At the ends without `lerp`, which would make nan of 0 · −∞.
    if beta == 0:
        mixed = p
    elif beta == 1:
        mixed = q
    else:
        mixed = torch.lerp(p, q, beta)
    return float(speculation.kl_divergence(mixed.log_softmax(-1), p))


def _text(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    return cast(str, tokenizer.decode(list(ids), skip_special_tokens=False))


# --- the continuation probe: prompts → rollouts of both behaviors → prefixes → continuations → grades ---


# Rows × longest prefix of one decoding batch: its first pass reads all prefixes at once.
PREFIX_TOKENS = 2**17


@dataclass(frozen=True)
class Cut:
    """One rollout at one truncation length, with its grade and the requests that continue it.

    A rollout that ended within the length has no requests.
    """

    prompt: int
    requests: list[Request]
    grade: Grade


@dataclass(frozen=True)
class ProbeOutcome:
    """The grade of one continuation, and whether it was truncated."""

    grade: Grade
    truncated: bool


def run_probe(spec: WorkerSpec, run: RunWriter) -> Iterator[int]:
    """Do the missing steps; yields the number of commits after each."""
    probe = ContinuationProbe(spec, run, shared_grader(spec.runtime.grader_deadline_s))
    for step in range(run.next_step, spec.unit.steps):
        probe.take(step)
        run.commit(step + 1)
        yield step + 1
    run.finish()


class ContinuationProbe:
    """The state that all steps of a probe share."""

    def __init__(self, spec: WorkerSpec, run: RunWriter, grader: Grader):
        self.spec = spec
        self.settings = spec.setup.probe
        self.run = run
        self.grader = grader
        # The solved prefix needs whole distributions, which only this engine gives.
        self.engine = TorchEngine(job_of(spec))

    @functools.cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The setup's one tokenizer."""
        return open_tokenizer(self.spec.teacher)

    @functools.cached_property
    def prompts(self) -> Prompts:
        """The first training prompts with a gold, each with its position in the training order."""
        data = load_training_set(self.spec.setup, self.spec.data_dir, self.tokenizer, 0)
        graded = []
        for index, prompt in enumerate(data.prompts):
            if prompt.problem.gold is not None:
                graded.append((index, prompt))
        if len(graded) < self.settings.prompts:
            wanted = f"≤ {len(graded)}, the number of training prompts with a gold"
            raise refuse("probe.prompts", self.settings.prompts, wanted)
        return graded[: self.settings.prompts]

    def take(self, step: int) -> None:
        """Probe the prompts of one commit and append their rows, at first also the documents."""
        prompts = self.prompts[step * PROMPTS_AT_ONCE : (step + 1) * PROMPTS_AT_ONCE]
        student, blended = BEHAVIORS
        sources = {
            student: self.sample(prompts, Student()),
            blended: self.sample(prompts, TrustRegion(self.spec.unit.knobs["epsilon"])),
        }
        if step == 0:
            self.write_documents(prompts, sources)
        for name, source in sources.items():
            self.run.append("rollouts.jsonl", ({"behavior": name} | row for row in source.rows()))
        for length in truncation_lengths(self.spec.setup):
            cuts = {name: self.cut(source, length) for name, source in sources.items()}
            for continuer in CONTINUERS:
                where = {"continuer": continuer, "t": length}
                rows = self.rows(cuts, self.outcomes(cuts, continuer, length))
                self.run.append("continuations.jsonl", [where | row for row in rows])

    def sample(self, prompts: Prompts, behavior: Behavior) -> ProbeSource:
        """Sample the rollouts of step 0 in prompt order, score them by the teacher, and grade them."""
        requests: list[Request] = []
        for index, prompt in prompts:
            for sample in range(self.settings.prefixes):
                key = SequenceKey(Purpose.TRAINING, self.spec.unit.seed, 0, index, sample)
                requests.append(Request(prompt.ids, key))
        training = self.spec.setup.training
        limits = Limits(training.max_response_tokens, support_size(self.spec.setup))
        rollouts = concatenate(list(self.engine.sampler().sample(requests, behavior, limits)))
        scores = rollouts.teacher or self.engine.scorer().score(rollouts)
        texts = [self.text(rollouts.response(row)) for row in range(len(requests))]
        grades = self.grade([request.key.prompt for request in requests], texts)
        return ProbeSource(rollouts, scores, texts, grades)

    def cut(self, source: ProbeSource, length: int) -> list[Cut]:
        """Cut each rollout to `length` tokens, and make the requests that continue it from there."""
        cuts: list[Cut] = []
        for row, request in enumerate(source.rollouts.requests):
            prefix = source.rollouts.response(row)[:length]
            key = request.key
            ended = self.spec.setup.student.closing_id in prefix
            requests: list[Request] = []
            for repetition in range(0 if ended else self.settings.continuations):
                own_key = SequenceKey(
                    Purpose.CONTINUATION, key.seed, length, key.prompt, key.sample, repetition
                )
                requests.append(Request((*request.prompt_ids, *prefix), own_key))
            cuts.append(Cut(key.prompt, requests, source.grades[row]))
        return cuts

    def outcomes(
        self, cuts: dict[str, list[Cut]], continuer: Owner, length: int
    ) -> dict[Request, ProbeOutcome]:
        """Grade each continuation; a prefix that both behaviors share is continued once."""
        # Equal prefixes have equal requests, hence the same random numbers and the same
        # continuations: each is sampled once, and counts for both behaviors.
        distinct: dict[Request, None] = {}
        for of_behavior in cuts.values():
            for cut in of_behavior:
                distinct |= dict.fromkeys(cut.requests)
        requests = list(distinct)
        if not requests:
            return {}
        rollouts = self.generate(continuer, requests, length)
        texts: list[str] = []
        for row, request in enumerate(requests):
            # A prompt ends with the prefix, which belongs to the answer.
            texts.append(self.text([*request.prompt_ids[-length:], *rollouts.response(row)]))
        grades = self.grade([request.key.prompt for request in requests], texts)
        outcomes: dict[Request, ProbeOutcome] = {}
        for row, request in enumerate(requests):
            outcomes[request] = ProbeOutcome(grades[row], bool(rollouts.truncated_B[row]))
        return outcomes

    def generate(self, continuer: Owner, requests: list[Request], length: int) -> Rollouts:
        """Sample the rest of each response, up to the limit that prefix and rest share."""
        limit = self.spec.setup.training.max_response_tokens
        longest = max(len(request.prompt_ids) for request in requests)
        limits = Limits(limit - length, at_once=PREFIX_TOKENS // longest)
        return concatenate(list(self.engine.sampler(continuer).sample(requests, Student(), limits)))

    def rows(
        self, cuts: dict[str, list[Cut]], outcomes: dict[Request, ProbeOutcome]
    ) -> Iterator[dict[str, Any]]:
        """Counts of each behavior and prompt."""
        prefixes = self.settings.prefixes
        for name, of_behavior in cuts.items():
            for start in range(0, len(of_behavior), prefixes):
                group = of_behavior[start : start + prefixes]
                yield {"behavior": name, "prompt": group[0].prompt} | self.counts(group, outcomes)

    def counts(self, cuts: list[Cut], outcomes: dict[Request, ProbeOutcome]) -> dict[str, int]:
        """Counts over the continuations of one prompt's rollouts.

        A finished answer counts `continuations` times, as if each had ended at once.
        """
        counts = {"prefixes": len(cuts), "finished": 0}
        counts |= {"n": 0, "correct": 0, "truncated": 0, "no_answer": 0, "timed_out": 0}
        for cut in cuts:
            of_cut = [outcomes[request] for request in cut.requests]
            if not cut.requests:
                counts["finished"] += 1
                of_cut = [ProbeOutcome(cut.grade, truncated=False)] * self.settings.continuations
            for outcome in of_cut:
                counts["n"] += 1
                counts["correct"] += outcome.grade.correct
                counts["truncated"] += outcome.truncated
                counts["no_answer"] += outcome.grade.extracted is None
                counts["timed_out"] += outcome.grade.timed_out
        return counts

    def write_documents(self, prompts: Prompts, sources: dict[str, ProbeSource]) -> None:
        """Write the solved prefix and the prompt-matched rollouts, of each prompt's first sample."""
        prefixes = self.settings.prefixes
        rows = range(0, min(len(prompts), EXCERPTS) * prefixes, prefixes)
        example, matched = DOCUMENTS
        budgets = self.spec.unit.identity["budgets"]
        vanilla = sources[REFERENCE].rollouts
        store = self.engine.store
        visited = [(vanilla.requests[row].prompt_ids, vanilla.response(row)) for row in rows]
        solved = solved_example(store.student, store.teacher, visited, self.tokenizer, budgets)
        self.run.write_document(example, solved)
        self.run.write_document(matched, excerpts(prompts, sources, rows))

    def text(self, response: list[int]) -> str:
        """Text of a response, as the grader sees it."""
        return response_text(response, self.spec.setup.student.closing_id, self.tokenizer)

    def grade(self, prompts: list[int], texts: list[str]) -> list[Grade]:
        """Grade each text as an answer to the prompt at that position of the training order."""
        posed = dict(self.prompts)
        answers: list[tuple[Gold | str, str]] = []
        for index, text in zip(prompts, texts, strict=True):
            prompt = posed[index]
            answers.append((gold_of(prompt), graded_text(prompt.ids, text, self.tokenizer)))
        return self.grader.grade_many(answers)
