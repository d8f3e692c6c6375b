"""The model card of an exported checkpoint: its front matter for hubs, scores and provenance."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from analysis.facts.evidence import ConfirmedRow, RowEvidence, with_interval
from analysis.labels import benchmark_label, method_title
from analysis.table.evidence_formats import score_text
from orchestrator.config import Setup
from orchestrator.experiment.units import Unit
from orchestrator.pair import Model

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@dataclass(frozen=True)
class Exported:
    """A checkpoint that is exported: one training run of the setting that `row` has in the table.

    `own` and `fresh` are its own pass@1 in percent by benchmark and `avg`, on the samples that
    chose it and on samples that took no part. `origin` is the provenance, `weights` the sha256 of
    its files of weights, `licence` that of the student's files if they state one, `confirmed` the
    score of the same setting on other seeds. `caveats` are those of its experiment and setup.
    """

    experiment: str
    setup: Setup
    setup_name: str
    unit: Unit
    row: RowEvidence
    own: Mapping[str, float]
    fresh: Mapping[str, float]
    origin: Mapping[str, Any]
    weights: Mapping[str, str]
    licence: str | None
    confirmed: ConfirmedRow | None
    caveats: Sequence[str] = ()


def model_card(exported: Exported) -> str:
    """The text of README.md."""
    row, setup = exported.row, exported.setup
    name = f"{method_title(row.method)}, {setup.title or exported.setup_name}"
    matter = ModelCardData(
        base_model=hub_id(setup.student),
        library_name="transformers",
        pipeline_tag="text-generation",
        license=exported.licence,
        tags=["trb", "distillation", "on-policy-distillation", row.method],
        metrics=["pass@1"],
        model_name=name,
        eval_results=_results(exported),
    )
    system, versions = setup.prompt.system, sorted(exported.origin.get("versions", {}).items())
    messages = [{"role": "system", "content": system}] if system else []
    return _template().render(
        vars(exported)
        | {
            "matter": matter.to_yaml(),
            "name": name,
            "method": " with ".join(filter(None, (method_title(row.method), row.setting))),
            "benchmarks": exported.setup.evaluation.benchmarks,
            "prompt": setup.prompt,
            "messages": repr([*messages, {"role": "user", "content": "…"}]),
            "question": repr(f"{system}\n…\n" if system else "…\n"),
            "length": setup.training.max_response_tokens,
            "models": [_model(exported, role) for role in ("student", "teacher")],
            "weights": sorted(exported.weights.items()),
            "versions": [f"{key} {version}" for key, version in versions if version],
        }
    )


def _template() -> Template:
    """The card's text; it is Markdown, in which nothing is escaped."""
    environment = Environment(
        loader=PackageLoader("orchestrator.commands", "."),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"score": score_text, "label": benchmark_label, "lead": with_interval}
    return environment.get_template("model_card.jinja")


def hub_id(model: Model) -> str | None:
    """The id of a model on a hub; None for a folder and for a recipe."""
    path = model.path if model.recipe is None else None
    return path if path and HUB_ID.fullmatch(path) and not Path(path).is_dir() else None


def _results(exported: Exported) -> list[EvalResult]:
    """The scores of this very checkpoint for hubs, on samples that did not choose it if there are
    any.
    """
    results = []
    for key, run in exported.setup.evaluation.benchmarks.items():
        fresh = key in exported.fresh
        score = (exported.fresh if fresh else exported.own).get(key)
        if score is None:
            continue
        samples = "fresh samples" if fresh else "the samples that chose it"
        results.append(
            EvalResult(
                task_type="text-generation",
                dataset_type=run.path if run.path and HUB_ID.fullmatch(run.path) else key,
                dataset_name=benchmark_label(key, run),
                metric_type="pass@1",
                metric_name=f"pass@1 in %, n = {run.n}, on {samples}",
                metric_value=round(score, 1),
            )
        )
    return results


def _model(exported: Exported, role: str) -> tuple[str, str, dict[str, str]]:
    """Role, source and digests of the student or the teacher."""
    model: Model = getattr(exported.setup, role)
    source = hub_id(model) or ("a recipe of trb" if model.recipe else "a local folder")
    identity = exported.unit.identity.get(role, {})
    digests = {
        key: identity[key] for key in ("revision", "weights", "tokenizer") if key in identity
    }
    return role.capitalize(), source, digests
