"""The section `rollouts`: vanilla and TRB side by side, as the continuation probe kept them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analysis.labels import method_label, setup_title
from analysis.probe import gains
from analysis.report.html import Html, block, code, element, note, paragraph, section
from analysis.report.texts import signed_decimal
from orchestrator.experiment.probe import BEHAVIORS
from orchestrator.selection.study import Study

INTRODUCTION = (
    "Rollouts of the untrained student before any training: sampled from the student alone, and inside the trust "
    "region with the probe's budget. The prompts are the first of the probe's, not a choice of telling ones. Both "
    "sides share their random numbers: a pair of equal texts means that the region left every draw as it was."
)
OFF_TASK = (
    "Odd words are no fault: this student was made so that it answers a share of {share:.0%} of its prompts with "
    "unrelated words (student.recipe.off_task), as a weak student strays from a task."
)


def excerpts_section(study: Study) -> Html:
    """The excerpts of each setup, or the command that makes them."""
    parts = [paragraph(INTRODUCTION)]
    for name, setup in study.experiment.setups.items():
        parts.append(element("h3", setup_title(name, study.experiment.setups)))
        excerpts = gains.excerpts(study, name)
        recipe = setup.student.recipe
        if not excerpts:
            missing = "There are none yet: no continuation probe has been completed. "
            parts.append(paragraph(missing, code("trb probe continuation EXP.yaml"), " runs it."))
        elif recipe and recipe.off_task:
            parts.append(note(OFF_TASK.format(share=recipe.off_task)))
        for number, excerpt in enumerate(excerpts, 1):
            parts.append(_pair(f"Prompt {number}", excerpt))
    return section("Rollouts side by side", "rollouts", *parts)


def _pair(title: str, excerpt: Mapping[str, Any]) -> Html:
    sides = [_side(method_label(behavior), excerpt[behavior]) for behavior in BEHAVIORS]
    return element(
        "article",
        element("h4", title),
        block(excerpt["prompt"], title),
        paragraph("Right answer: ", code(str(excerpt["gold"]))),
        element("div", *sides, class_="pair"),
    )


def _side(title: str, rollout: Mapping[str, Any]) -> Html:
    mark, kind = ("✓ correct", "right") if rollout["correct"] else ("✗ incorrect", "wrong")
    facts = f" · {rollout['length']} tokens"
    if rollout["truncated"]:
        facts += ", cut off at the limit"
    log_prob = rollout["mean_teacher_log_prob"]
    if log_prob is not None:
        facts += f", mean teacher log-prob {signed_decimal(log_prob)} nats"
    words = paragraph(element("span", mark, class_=kind), element("span", facts, class_="note"))
    return element("div", element("h5", title), words, block(rollout["text"], title))
