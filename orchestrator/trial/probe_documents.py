"""Makes the probe's documents: a prefix with solved trust regions, and prompt-matched rollouts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from orchestrator.data.training_set import TrainingPrompt
from orchestrator.engines.common.causal import CausalModel
from orchestrator.engines.common.packing import padded
from orchestrator.grading.grader import Gold, Grade
from orchestrator.policy import speculation, trust_region
from orchestrator.policy.vocabulary import NEG_INF
from orchestrator.rollouts import Rollouts, TeacherScores
from orchestrator.trial.diagnostics import rollout_rows
from orchestrator.workers.digests import digest_rollouts, digest_scores

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
        document: dict[str, Any] = {
            "prompt": prompt.problem.text,
            "gold": gold_of(prompt).answer,
        }
        for behavior, source in sources.items():
            document[behavior] = _excerpt(source, row)
        documents.append(document)
    return documents


def _excerpt(source: ProbeSource, row: int) -> dict[str, Any]:
    length = int(source.rollouts.lengths_B[row])
    return {
        "text": source.texts[row],
        "correct": source.grades[row].correct,
        "length": length,
        "truncated": bool(source.rollouts.truncated_B[row]),
        "mean_teacher_log_prob": float(source.scores.token_BT[row, :length].double().mean()),
    }


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
    return {
        "prompt": _text(tokenizer, prompt),
        "prefix": _text(tokenizer, response[:position]),
        "tokens": [_text(tokenizer, [token]) for token in shown.tolist()],
        "p": p[shown].tolist(),
        "q": q[shown].tolist(),
        "solutions": [_solution(log_p, log_q, epsilon, shown) for epsilon in budgets],
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


def _solution(log_p: Tensor, log_q: Tensor, epsilon: float, shown: Tensor) -> dict[str, Any]:
    solved = trust_region.solve(log_p[None], log_q[None], epsilon)
    mu = solved.log_mu[0].exp()[shown].tolist()
    return {"epsilon": epsilon, "beta": float(solved.beta), "kl": float(solved.kl), "mu": mu}


def _path_kl(log_p: Tensor, log_q: Tensor, beta: float) -> float:
    """KL(μ_β‖p), μ_β ∝ p^(1−β) q^β (paper, Eq. 2)."""
    live = log_p > NEG_INF
    p = log_p[live]
    q = log_q[live]
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
