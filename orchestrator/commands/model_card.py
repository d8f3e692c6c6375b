"""The model card of an exported checkpoint: its front matter for hubs, scores and provenance."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from analysis.labels import AVERAGE, AVERAGE_LABEL, benchmark_label, method_title
from analysis.numbers import tenths_text
from analysis.scores.evidence import ConfirmedRow, RowEvidence, with_interval
from orchestrator import sheet
from orchestrator.config import Model, Setup
from orchestrator.experiment.units import Unit
from orchestrator.sheet import Sheet

FRONT_MATTER = re.compile(r"\A---\n(.*?)^---$", re.MULTILINE | re.DOTALL)
PERCENT = 100
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
NO_LICENCE = "The files of the base model do not state one, so it is not known."


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
    data = ModelCardData(
        base_model=hub_id(exported.setup.student),
        library_name="transformers",
        pipeline_tag="text-generation",
        license=exported.licence,
        tags=["trb", "distillation", "on-policy-distillation", exported.row.method],
        metrics=["pass@1"],
        model_name=exported.name,
        eval_results=_results(exported),
    )
    parts = [
        f"---\n{data.to_yaml()}\n---",
        f"# {exported.name}",
        _about(exported),
        "## Scores",
        _scores(exported),
        "## Use",
        _use(exported.setup, exported.origin),
        "## Provenance",
        _provenance(exported),
        "## Licence",
        _licence(exported),
    ]
    return "\n\n".join(parts) + "\n"


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


def _about(exported: Exported) -> str:
    row, unit = exported.row, exported.unit
    setting = f" with {row.setting}" if row.setting else ""
    runs = ""
    if row.seeds > 1:
        runs = f" It is one of {row.seeds} training runs that the table averages."
    return (
        f"A student that learnt from its teacher by on-policy distillation: {method_title(row.method)}{setting}, "
        f"seed {unit.seed}, step {row.step} of {unit.steps}.{runs} It was trained and chosen by `trb`."
    )


def _scores(exported: Exported) -> str:
    """The scores of the checkpoint beside the cells of the table, and how to read them."""
    headings = ["Benchmark", "This checkpoint", "On fresh samples", "In the table", "− Vanilla"]
    names = {AVERAGE: AVERAGE_LABEL}
    for key, run in exported.setup.evaluation.benchmarks.items():
        names[key] = f"{benchmark_label(key, run)} (n = {run.n})"
    rows = []
    for key, name in names.items():
        column = exported.row.columns[key]
        difference = column.difference
        rows.append(
            [
                name,
                _percent(_of(exported.own, key)),
                _percent(_of(exported.fresh, key)),
                f"{tenths_text(column.score.value)} ±{column.score.reach}",
                with_interval(difference.estimate) if difference is not None else "",
            ]
        )
    table = "\n".join(sheet.to_markdown(Sheet.of(headings, rows), str.maketrans({"|": "\\|"})))
    over = exported.row.columns[AVERAGE].score.over
    interval = (
        f"a 95 % t interval over {exported.row.seeds} training runs"
        if over == "seeds"
        else "a 95 % bootstrap interval over problems (*): another seed moves the score by more"
    )
    return (
        f"pass@1 in %.\n\n{table}\n\nThe table's score is a mean over the training runs of this setting, and ± is "
        f"{interval}. The step was chosen by the samples of the first column, out of {exported.row.candidates} "
        f"candidates; fresh samples took no part. An empty cell was not measured.{_confirmed(exported)}"
    )


def _confirmed(exported: Exported) -> str:
    """A sentence on the confirming runs, if there are any."""
    row = exported.confirmed
    if row is None or AVERAGE not in row.columns:
        return ""
    score = row.columns[AVERAGE].score
    return (
        f"\n\nTrained again on {len(row.units)} seeds that took no part in choosing it, the setting "
        f"scores {tenths_text(score.value)} ±{score.reach} on average."
    )


def _of(scores: Mapping[str, float], key: str) -> float | None:
    """The score of a benchmark, or the mean over all of them."""
    if key != AVERAGE:
        return scores.get(key)
    return sum(scores.values()) / len(scores) if scores else None


def _percent(score: float | None) -> str:
    return "" if score is None else f"{PERCENT * score:.1f}"


def _use(setup: Setup, origin: Mapping[str, Any]) -> str:
    """Lines that load the checkpoint and put a question to it in the form of its training."""
    if setup.prompt.kind == "chat":
        system = [{"role": "system", "content": setup.prompt.system}] if setup.prompt.system else []
        messages = [*system, {"role": "user", "content": "…"}]
        thinking = setup.prompt.enable_thinking
        inputs = (
            f"inputs = tokenizer.apply_chat_template({messages!r}, add_generation_prompt=True, "
            f'enable_thinking={thinking}, return_dict=True, return_tensors="pt")'
        )
    else:
        text = f"{setup.prompt.system}\n…\n" if setup.prompt.system else "…\n"
        inputs = f'inputs = tokenizer({text!r}, return_tensors="pt", add_special_tokens=False)'
    length = setup.training.max_response_tokens
    lines = [
        "```python",
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        'tokenizer = AutoTokenizer.from_pretrained(".")',
        'model = AutoModelForCausalLM.from_pretrained(".")',
        inputs,
        f"outputs = model.generate(**inputs, do_sample=True, max_new_tokens={length})",
        "print(tokenizer.decode(outputs[0]))",
        "```",
    ]
    version = origin.get("versions", {}).get("transformers")
    written = f"transformers {version}" if version else "transformers 5"
    return "\n".join(lines) + (
        "\n\n`.` is this folder; on a hub it is the id of the repository. The files were written by "
        f"{written}. The settings also stand in the form of version 4: 4.57.6 reads them alike."
    )


def _provenance(exported: Exported) -> str:
    origin, unit = exported.origin, exported.unit
    commit = origin.get("commit") or "unknown: the program was no checkout"
    if origin.get("dirty_diff"):
        commit = f"{commit} with uncommitted changes"
    lines = [
        f"- Experiment: {exported.experiment}; unit `{unit.id}`",
        f"- Code: commit {commit}",
    ]
    for role in ("student", "teacher"):
        model: Model = getattr(exported.setup, role)
        source = hub_id(model) or ("a recipe of trb" if model.recipe else "a local folder")
        identity = unit.identity.get(role, {})
        facts = [f"- {role.capitalize()}: {source}"]
        digests = []
        for key in ("revision", "weights", "tokenizer"):
            if key in identity:
                digests.append(f"{key} `{identity[key]}`")
        if digests:
            facts.append(", ".join(digests))
        lines.append("; ".join(facts))
    for name, sha256 in sorted(exported.weights.items()):
        lines.append(f"- `{name}`: sha256 `{sha256}`")
    versions = origin.get("versions", {})
    known = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()) if version)
    lines.append(f"- Versions: {known}")
    return "\n".join(lines)


def _licence(exported: Exported) -> str:
    own = f"The base model is under `{exported.licence}`." if exported.licence else NO_LICENCE
    return f"{own} The teacher's licence, and those of the training data, may bind as well."
