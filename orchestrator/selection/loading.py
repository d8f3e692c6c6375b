"""Loads an experiment file as a `Study`: the first step of every command and of notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator.errors import refuse
from orchestrator.experiment.load import data_folder, find_experiment, load_experiment, runs_of
from orchestrator.experiment.methods import null_overrides
from orchestrator.experiment.units import Unit, expand
from orchestrator.records.files import Damaged
from orchestrator.selection import scores
from orchestrator.selection.confirmation import confirming_seeds, with_confirmation
from orchestrator.selection.results_folder import settled_name
from orchestrator.selection.samples_wanted import family_state
from orchestrator.selection.study import Invocation, Study
from orchestrator.start_up import default_runs

# --- finds units with damaged or lost files ---
#
# Checks the small files of each unit. Rollouts, which may be gigabytes, and checkpoints are verified
# by their readers.


def damaged_units(study: Study) -> dict[str, str]:
    """Unit id → a line that names the file and the remedy."""
    damages: dict[str, str] = {}
    for unit in study.units:
        try:
            _read_all(study, unit)
        except Damaged as error:
            damages[unit.id] = str(error)
    readable = [unit for unit in study.units if unit.id not in damages]
    return damages | _lost_checkpoints(study.with_units(readable))


def refuse_damaged(study: Study) -> None:
    """Raise Damaged with the first damaged unit's line; `trb status` shows all lines."""
    lines = list(damaged_units(study).values())
    if lines:
        others = f" (and {len(lines) - 1} more: trb status)" if lines[1:] else ""
        raise Damaged(f"{lines[0]}{others}")


def _read_all(study: Study, unit: Unit) -> None:
    run = study.reader(unit)
    run.last_metrics()
    run.check_documents()
    run.checkpoints()
    for evaluation_ids in (
        study.evaluation_ids(unit.setup),
        study.fresh_evaluation_ids(unit.setup),
    ):
        for evaluation_id in evaluation_ids.values():
            for step in run.evaluated_steps(evaluation_id):
                scores.tally(run, evaluation_id, step)


def _lost_checkpoints(study: Study) -> dict[str, str]:
    """Find units that lost a checkpoint which still wants samples.

    A checkpoint that has all its samples may be gone. Only its family's state tells whether more
    are wanted, and computing that raises Damaged if they are.
    """
    losers: set[str] = set()
    for unit in study.units:
        run = study.reader(unit)
        if not set(run.committed_checkpoints()) <= set(run.checkpoints()):
            losers.add(unit.id)
    damages: dict[str, str] = {}
    if not losers:
        return damages
    for family in study.families():
        try:
            family_state(study, family)
        except Damaged as error:
            for setting in family:
                for unit in setting:
                    if unit.id in losers:
                        damages[unit.id] = str(error)
    return damages


# --- loads an experiment file as a `Study`: the first step of every command and of notebooks ---


def load_study(
    experiment: str | Path,
    overrides: Sequence[str] = (),
    *,
    runs: Path | None = None,
    methods: str | None = None,
    confirm: int | None = None,
    until: float | None = None,
) -> Study:
    """The study of an experiment over its runs folder, with its data folder settled.

    `experiment` is a file, a results folder or the name of a shipped experiment. `overrides` are
    words such as `training.steps=20`. `methods` keeps only these methods, given by key or label and
    separated by commas. `confirm` is a number of confirming seeds in place of `confirm.seeds`, and
    `until` stands for `confirm.until`. Without `runs` the runs folder is the one around the results
    folder, else `$TRB_RUNS`, else `runs`. Raises UserError for a mistake in any of these.
    """
    path, words = find_experiment(Path(experiment)), list(overrides)
    loaded = load_experiment(path, words)
    if methods is not None:
        words += null_overrides(methods, loaded.methods)
        loaded = load_experiment(path, words)
    typed = (str(experiment), *overrides)
    typed += () if methods is None else ("--methods", methods)
    if confirm is not None:
        words.append(f"confirm.seeds={confirming_seeds(loaded, confirm)}".replace(" ", ""))
        loaded = load_experiment(path, words)
        typed += ("--confirm", str(confirm))
    if until is not None and not loaded.confirm.seeds:
        raise refuse("--until", until, "--confirm N beside it, or confirm.seeds in the experiment")
    if until is not None:
        loaded = load_experiment(path, words := [*words, f"confirm.until={until:g}"])
        typed += ("--until", f"{until:g}")
    # A results folder lies in its runs folder, which an explicit `runs` overrules.
    of_results = runs_of(path) if runs is None else None
    runs = of_results or runs or default_runs()
    typed += ("--runs", str(runs)) if of_results is None and runs != Path("runs") else ()
    folder = runs.resolve()
    if folder.exists() and not folder.is_dir():
        raise refuse("--runs", str(runs), "a folder; this is a file")
    loaded = replace(
        loaded,
        name=settled_name(loaded, words, folder),
        data_dir=str(Path(data_folder(loaded.data_dir)).resolve()),
    )
    study = Study(loaded, expand(loaded, folder), folder, invocation=Invocation(typed))
    try:
        return with_confirmation(study)
    except Damaged:
        # The commands look for damage themselves, and name every damaged file instead of one.
        return study
