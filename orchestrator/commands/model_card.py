"""The model card of an exported checkpoint: its front matter for hubs, scores and provenance."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from analysis.facts.evidence import ConfirmedRow, RowEvidence, with_interval
from analysis.labels import AVERAGE, AVERAGE_LABEL, benchmark_label, method_title
from analysis.numbers import tenths_text
from orchestrator import sheet
from orchestrator.config import Model, Setup
from orchestrator.experiment.units import Unit
from orchestrator.sheet import Sheet

FRONT_MATTER = re.compile(r"\A---\n(.*?)^---$", re.MULTILINE | re.DOTALL)
PERCENT = 100
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
HEADINGS = ("Benchmark", "This checkpoint", "On fresh samples", "In the table", "− Vanilla")
CARD = """---
{matter}
---

# {name}

A student that learnt from its teacher by on-policy distillation: {method}, seed {seed}, step {step} of \
{steps}. `trb` trained and chose it.

## Scores

pass@1 in %.

{table}

The table's score is the mean of {runs}, ± a 95 % interval over {over}. The samples of the first column \
chose the step out of {candidates} candidates; fresh samples took no part.{confirmed} An empty cell was \
not measured.

## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(".")
model = AutoModelForCausalLM.from_pretrained(".")
inputs = {inputs}
outputs = model.generate(**inputs, do_sample=True, max_new_tokens={length})
print(tokenizer.decode(outputs[0]))
```

`.` is this folder; on a hub it is the id of the repository. The settings stand in the forms of \
transformers 5 and of version 4.

## Provenance

- Experiment: {experiment}; unit `{unit}`
- Code: commit {commit}
{models}
{weights}
- Versions: {versions}

## Licence

{licence} The teacher's licence, and those of the training data, may bind as well.
"""


@dataclass(frozen=True)
class Exported:
    """A checkpoint that is exported: one training run of the setting that `row` has in the table.

    `own` and `fresh` are its own pass@1 in [0, 1] by benchmark, on the samples that chose it and on
    samples that took no part. `origin` is the provenance, `weights` the sha256 of its files of weights,
    `licence` that of the student's files if they state one, `confirmed` the score of the same
    setting on other seeds.
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

    @property
    def name(self) -> str:
        return f"{method_title(self.row.method)}, {self.setup.title or self.setup_name}"


def licence_of(folder: Path | None) -> str | None:
    """The `license` in the front matter of the model card in a model's folder; None without one."""
    if folder is None or not (folder / "README.md").is_file():
        return None
    text = (folder / "README.md").read_text(encoding="utf-8", errors="replace")
    matter = FRONT_MATTER.match(text)
    stated = re.search(r"^license: *([\w.-]+) *$", matter[1], re.MULTILINE) if matter else None
    return stated[1] if stated else None


def model_card(exported: Exported) -> str:
    """The text of README.md."""
    row, unit, origin, setup = exported.row, exported.unit, exported.origin, exported.setup
    matter = ModelCardData(
        base_model=hub_id(setup.student),
        library_name="transformers",
        pipeline_tag="text-generation",
        license=exported.licence,
        tags=["trb", "distillation", "on-policy-distillation", row.method],
        metrics=["pass@1"],
        model_name=exported.name,
        eval_results=_results(exported),
    )
    commit = origin.get("commit") or "unknown: the program was no checkout"
    changed = " with uncommitted changes" if origin.get("dirty_diff") else ""
    versions = sorted(origin.get("versions", {}).items())
    weights = [f"- `{name}`: sha256 `{sha}`" for name, sha in sorted(exported.weights.items())]
    base = f"The base model is under `{exported.licence}`."
    return CARD.format(
        matter=matter.to_yaml(),
        name=exported.name,
        method=" with ".join(filter(None, (method_title(row.method), row.setting))),
        seed=unit.seed,
        step=row.step,
        steps=unit.steps,
        table=_table(exported),
        runs="one training run" if row.seeds == 1 else f"{row.seeds} training runs",
        over="training runs" if row.columns[AVERAGE].score.over == "seeds" else "problems (*)",
        candidates=row.candidates,
        confirmed=_confirmed(exported.confirmed),
        inputs=_inputs(setup),
        length=setup.training.max_response_tokens,
        experiment=exported.experiment,
        unit=unit.id,
        commit=commit + changed,
        models="\n".join(_model(exported, role) for role in ("student", "teacher")),
        weights="\n".join(weights),
        versions=", ".join(f"{name} {version}" for name, version in versions if version),
        licence=base if exported.licence else "The licence of the base model is not known.",
    )


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
                metric_value=round(PERCENT * score, 1),
            )
        )
    return results


def _table(exported: Exported) -> str:
    """The scores of the checkpoint beside the cells of the table, as Markdown."""
    names = {AVERAGE: AVERAGE_LABEL}
    for key, run in exported.setup.evaluation.benchmarks.items():
        names[key] = f"{benchmark_label(key, run)} (n = {run.n})"
    rows = []
    for key, name in names.items():
        score = exported.row.columns[key].score
        difference = exported.row.columns[key].difference
        own = [_percent(_of(scores, key)) for scores in (exported.own, exported.fresh)]
        cell = f"{tenths_text(score.value)} ±{score.reach}"
        rows.append([name, *own, cell, with_interval(difference.estimate) if difference else ""])
    return "\n".join(sheet.to_markdown(Sheet.of(HEADINGS, rows), str.maketrans({"|": "\\|"})))


def _confirmed(row: ConfirmedRow | None) -> str:
    """A sentence on the confirming runs, if there are any."""
    if row is None or AVERAGE not in row.columns:
        return ""
    score = f"{tenths_text(row.columns[AVERAGE].score.value)} ±{row.columns[AVERAGE].score.reach}"
    return f" On {len(row.units)} seeds that took no part, the setting scores {score} on average."


def _of(scores: Mapping[str, float], key: str) -> float | None:
    """The score of a benchmark, or the mean over all of them."""
    if key != AVERAGE:
        return scores.get(key)
    return sum(scores.values()) / len(scores) if scores else None


def _percent(score: float | None) -> str:
    return "" if score is None else f"{PERCENT * score:.1f}"


def _inputs(setup: Setup) -> str:
    """The expression that puts a question to it in the form of its training."""
    system = setup.prompt.system
    if setup.prompt.kind == "chat":
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": "…"})
        return (
            f"tokenizer.apply_chat_template({messages!r}, add_generation_prompt=True, "
            f'enable_thinking={setup.prompt.enable_thinking}, return_dict=True, return_tensors="pt")'
        )
    text = f"{system}\n…\n" if system else "…\n"
    return f'tokenizer({text!r}, return_tensors="pt", add_special_tokens=False)'


def _model(exported: Exported, role: str) -> str:
    """A line of the provenance of the student or the teacher."""
    model: Model = getattr(exported.setup, role)
    source = hub_id(model) or ("a recipe of trb" if model.recipe else "a local folder")
    identity = exported.unit.identity.get(role, {})
    keys = [key for key in ("revision", "weights", "tokenizer") if key in identity]
    digests = ", ".join(f"{key} `{identity[key]}`" for key in keys)
    return f"- {role.capitalize()}: {source}" + (f"; {digests}" if digests else "")
