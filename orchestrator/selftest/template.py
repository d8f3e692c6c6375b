"""Measures the cost of the sweep's prompt to the teacher, beside the teacher's own chat template.

A teacher that gets prompts unlike those of its training answers worse: its log-probabilities sink,
and with them every target of the student. No loss shows that. Elsewhere such a mismatch cost
0.29 nats a token and a failed reproduction (tinker-cookbook, issue 796).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator.config import Experiment, Model, PromptTemplate, Setup
from orchestrator.data.benchmarks import load_benchmark
from orchestrator.engines.device import has_driver
from orchestrator.engines.interface import Job
from orchestrator.engines.memory import needs_gpu
from orchestrator.errors import UserError
from orchestrator.models import locate, make

# Nats a token: twice what rounding in bfloat16 may do (`workers.canary`), and a third of the
# mismatch that is known to have spoilt a reproduction.
MOST_NATS = 0.1
PROBLEMS, TOKENS = 4, 32  # greedy answers of the teacher, and the length at which they are cut

NOT_TRIED = "not tried"
PLAIN = PromptTemplate(kind="plain")


def own_template(setup: Setup) -> PromptTemplate:
    """The prompt template with which the teacher was trained.

    An embedded teacher learned plain problems, and a recipe's updates ask as the setup asks. Any
    other has a chat template, if its tokenizer has one; the system message and thinking are the
    setup's choice and no mismatch.
    """
    recipe = setup.teacher.recipe
    if recipe is not None and recipe.is_embedded:
        return PLAIN
    if recipe is not None and recipe.updates:
        return setup.prompt
    return replace(setup.prompt, kind="chat")


def asks_as_its_own(setup: Setup) -> bool:
    """Whether prompt and own template are the same by the configuration alone."""
    own = own_template(setup)
    return (setup.prompt.kind, setup.prompt.system or None) == (own.kind, own.system)


def check_template(
    name: str, setup: Setup, experiment: Experiment, runs: Path, on_gpu: bool = False
) -> str:
    """Say in a line what was found; UserError if the prompt costs the teacher more than the bound.

    Models that are not made yet are not tried, and the line says so. Models that need a GPU are
    tried `on_gpu` alone: the process then holds some of its memory until it ends.
    """
    if asks_as_its_own(setup):
        return "the prompt is the teacher's own template"
    untried = why_untried(setup, runs, on_gpu)
    if untried is not None:
        return untried
    teacher = locate.checkpoint_of(setup.teacher, setup, runs)
    if not _is_embedded(setup.teacher) and not has_chat_template(Path(teacher.path)):
        return "the teacher has no chat template of its own"
    cost = nats_apart(setup, experiment, runs)
    if cost > MOST_NATS:
        raise UserError(
            f"{name}.prompt: {cost:.2f} nats a token under the teacher's own template: expected at "
            f"most {MOST_NATS:g}, or kind: {own_template(setup).kind} without a system message"
        )
    return f"{cost:.3f} nats a token under the teacher's own template, {MOST_NATS:g} allowed"


def why_untried(setup: Setup, runs: Path, on_gpu: bool) -> str | None:
    """Why the models cannot be tried here; None if they can."""
    if not make.are_there(setup, runs):
        return f"{NOT_TRIED}: the models are not made yet"
    if needs_gpu(setup) and not (on_gpu and has_driver()):
        return (
            f"{NOT_TRIED}: the models need a GPU; "
            "trb doctor EXP.yaml on a machine with one tries it"
        )
    return None


def has_chat_template(folder: Path) -> bool:
    """Whether a model's folder holds a chat template. Needs no transformers, which takes seconds."""
    if (folder / "chat_template.jinja").exists():
        return True
    config = folder / "tokenizer_config.json"
    if not config.exists():
        return False
    return bool(json.loads(config.read_text(encoding="utf-8")).get("chat_template"))


def nats_apart(setup: Setup, experiment: Experiment, runs: Path) -> float:
    """Nats per token by which the teacher's greedy answers are likelier under its own template."""
    from orchestrator.data.prompts import render
    from orchestrator.engines.common.store import ModelStore

    student = locate.checkpoint_of(setup.student, setup, runs)
    teacher = locate.checkpoint_of(setup.teacher, setup, runs)
    tokenizer = tokenizer_of(setup, teacher.path)
    own = own_template(setup)
    benchmark, run = next(iter(setup.evaluation.benchmarks.items()))
    store = ModelStore(Job(setup, experiment.runtime, student, teacher, trains=False))
    lost = counted = 0.0
    for problem in load_benchmark(benchmark, experiment.data_dir, run)[:PROBLEMS]:
        asked = render(problem.text, own, tokenizer)
        answer, known = greedy(store.teacher, asked, setup.student.closing_id)
        prompt = render(problem.text, setup.prompt, tokenizer)
        under_prompt = _log_probs(store.teacher, prompt, answer)
        lost += sum(known) - sum(under_prompt)
        counted += len(answer)
    store.drop_all()
    return lost / counted


def _is_embedded(model: Model) -> bool:
    return model.recipe is not None and model.recipe.is_embedded


def greedy(teacher, prompt: Sequence[int], eos: int) -> tuple[list[int], list[float]]:  # pyright: ignore[reportMissingParameterType]
    """The teacher's most likely answer, token by token, and the log-probabilities of its tokens.

    It ends with `eos`, as which the pair's stop event is emitted.
    """
    import torch

    answer: list[int] = []
    known: list[float] = []
    with torch.no_grad():
        while len(answer) < TOKENS and (not answer or answer[-1] != eos):
            row = torch.tensor([[*prompt, *answer]], device=teacher.device)
            hidden = teacher.hidden(row, torch.ones_like(row))[0]
            log_p = teacher.log_prob(teacher.head(hidden[-1:]))
            answer.append(int(log_p[0].argmax()))
            known.append(float(log_p[0].max()))
    return answer, known


def _log_probs(teacher, prompt: Sequence[int], answer: Sequence[int]) -> list[float]:  # pyright: ignore[reportMissingParameterType]
    from orchestrator.engines.common.causal import log_probs_of

    return log_probs_of(teacher, [*prompt, *answer])[-len(answer) :]


def tokenizer_of(setup: Setup, folder: str):  # pyright: ignore[reportMissingParameterType]
    """The teacher's tokenizer; an embedded one is known by name."""
    if _is_embedded(setup.teacher):
        from orchestrator.models.recipes import make_tokenizer

        return make_tokenizer(setup.tokenizer or "")
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)
