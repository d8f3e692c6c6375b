"""Rollouts of the same prompt side by side, as the continuation probe kept them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analysis.labels import method_label, setup_title
from analysis.probe import gains
from analysis.report.html import Html, element, join, paragraph, section
from analysis.report.texts import signed_decimal
from orchestrator.experiment.probe import BEHAVIORS
from orchestrator.selection.study import Study

LONG = 1200  # letters from which on a text scrolls, so that the keyboard must reach it
WHAT = (
    "Rollouts of the untrained student before any training: sampled from the student alone, and inside the trust "
    "region with the probe's budget. The prompts are the first of the probe's, not a choice of telling ones. Both "
    "sides share their random numbers: a pair of equal texts means that the region left every draw as it was."
)
OFF_TASK = (
    "Odd words are no fault: this student was made so that it answers a share of {share:.0%} of its prompts with "
    "unrelated words (student.recipe.off_task), as a weak student strays from a task."
)


def excerpts_section(study: Study) -> Html:
    """The excerpts of each setup, or how to get them."""
    parts = [_setup(study, setup) for setup in study.experiment.setups]
    return section("Rollouts side by side", "rollouts", paragraph(WHAT), *parts)


def _setup(study: Study, setup: str) -> Html:
    found = gains.excerpts(study, setup)
    if not found:
        command = element("code", "trb probe continuation EXP.yaml")
        shown = paragraph(
            "There are none yet: no continuation probe has been completed. ", command, " runs it."
        )
    else:
        recipe = study.experiment.setups[setup].student.recipe
        odd = (
            paragraph(OFF_TASK.format(share=recipe.off_task), class_="note")
            if recipe and recipe.off_task
            else Html()
        )
        shown = join([odd, *(_pair(index, excerpt) for index, excerpt in enumerate(found, 1))])
    return join([element("h3", setup_title(setup, study.experiment.setups)), shown])


def _pair(index: int, excerpt: Mapping[str, Any]) -> Html:
    sides = [_side(method_label(behavior), excerpt[behavior]) for behavior in BEHAVIORS]
    return element(
        "article",
        element("h4", f"Prompt {index}"),
        _text(excerpt["prompt"], f"Prompt {index}"),
        paragraph("Right answer: ", element("code", str(excerpt["gold"]))),
        element("div", *sides, class_="pair"),
    )


def _side(title: str, rollout: Mapping[str, Any]) -> Html:
    right = rollout["correct"]
    mark = element(
        "span", "✓ correct" if right else "✗ incorrect", class_="right" if right else "wrong"
    )
    cut = ", cut off at the limit" if rollout["truncated"] else ""
    log_prob = rollout["mean_teacher_log_prob"]
    support = "" if log_prob is None else f", mean teacher log-prob {signed_decimal(log_prob)} nats"
    facts = element("span", f" · {rollout['length']} tokens{cut}{support}", class_="note")
    return element(
        "div", element("h5", title), paragraph(mark, facts), _text(rollout["text"], title)
    )


def _text(text: str, label: str) -> Html:
    reach = {"tabindex": "0", "role": "region", "aria_label": label} if len(text) > LONG else {}
    return element("pre", text, **reach)
