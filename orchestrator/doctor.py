"""`trb doctor`: is this machine ready, and does an experiment's setup hold together? Each check is one line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from orchestrator import prepare
from orchestrator.config import Experiment, Setup
from orchestrator.grid import Unit
from orchestrator.tasks.grader import Grader
from orchestrator.wandb_mode import chosen_mode

SIGNS = {"ok": "[green]ok[/]  ", "warn": "[yellow]warn[/]", "fail": "[red]fail[/]"}


@dataclass(frozen=True)
class Finding:
    """One check: `verdict` is ok, warn or fail."""

    name: str
    verdict: str
    detail: str


def examine(loaded: tuple[Experiment, list[Unit], Path] | None, as_json: bool) -> int:
    """Print all findings; 0 unless one of them is `fail`."""
    checks: list[tuple[str, Callable[[], Finding]]] = [
        ("devices", _devices),
        ("memory", _memory),
        ("grader", _grader),
        ("gradient", _gradient),
        ("wandb", lambda: _wandb(loaded[0].runtime.wandb if loaded else "auto")),
    ]
    if loaded:
        experiment, _, runs = loaded
        checks.append(("placement", lambda: _placement(experiment)))
        for name, setup in experiment.setups.items():
            checks += _setup_checks(name, setup, experiment, runs)
    findings = [_run(name, check) for name, check in checks]
    if as_json:
        print(json.dumps({"checks": [asdict(finding) for finding in findings]}, indent=2))
    else:
        for finding in findings:
            Console().print(
                f"{SIGNS[finding.verdict]} {finding.name}: {finding.detail}", highlight=False, soft_wrap=True
            )
    return int(any(finding.verdict == "fail" for finding in findings))


def _run(name: str, check: Callable[[], Finding]) -> Finding:
    """A check that breaks is a finding too."""
    try:
        return check()
    except Exception as error:
        return Finding(name, "fail", " ".join(str(error).split())[:300])


def _devices() -> Finding:
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return Finding(
        "devices", "ok", f"{cores} CPU cores, {' '.join([f'{len(gpus)} GPUs', *gpus])}; torch {torch.__version__}"
    )


def _memory() -> Finding:
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return Finding("memory", "ok" if free > 4 else "warn", f"{free:.1f} GiB free; a laptop sweep wants 4")


def _grader() -> Finding:
    with Grader() as grader:
        right = grader.grade("\\frac{1}{2}", "so it is \\boxed{0.5}").correct
        wrong = grader.grade("\\frac{1}{2}", "so it is \\boxed{0.25}").correct
    verdict = "ok" if right and not wrong else "fail"
    return Finding("grader", verdict, "0.5 is one half and 0.25 is not" if verdict == "ok" else "grades wrongly here")


def _gradient() -> Finding:
    """The default objective's gradient against finite differences, in float64."""
    import torch

    from orchestrator.objective import token_loss

    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 8, generator=generator, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(3, 8, generator=generator, dtype=torch.float64).log_softmax(-1)
    right = torch.autograd.gradcheck(lambda x: token_loss("renormalized", x.log_softmax(-1), teacher), logits)
    return Finding("gradient", "ok" if right else "fail", "renormalized reverse KL agrees with finite differences")


def _wandb(wish: str) -> Finding:
    mode = chosen_mode(wish)
    if mode != "online":
        hint = "log in with `wandb login` to watch online" if mode == "offline" else "nothing is mirrored"
        return Finding("wandb", "ok", f"{mode}; {hint}")
    import requests

    url = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
    try:
        requests.get(f"{url}/healthz", timeout=5)
    except requests.RequestException as error:
        return Finding("wandb", "warn", f"online, but {url} cannot be reached ({type(error).__name__})")
    return Finding("wandb", "ok", f"online, {url} answers")


def _placement(experiment: Experiment) -> Finding:
    import torch

    asked = max(p.gpus for p in [experiment.runtime.placement, *experiment.placements.values()])
    here = torch.cuda.device_count()
    verdict = "ok" if asked <= here else "warn"
    return Finding("placement", verdict, f"a trial asks for {asked} GPUs; this machine has {here}")


def _setup_checks(
    name: str, setup: Setup, experiment: Experiment, runs: Path
) -> list[tuple[str, Callable[[], Finding]]]:
    return [
        (f"{name} data", lambda: _data(name, setup, experiment)),
        (f"{name} models", lambda: _models(name, setup, runs)),
        (f"{name} prompt", lambda: _prompt(name, setup, experiment, runs)),
    ]


def _data(name: str, setup: Setup, experiment: Experiment) -> Finding:
    prepare.check_data(name, setup, experiment.data_dir)
    return Finding(f"{name} data", "ok", f"benchmarks {', '.join(setup.evaluation.benchmarks)}; as declared")


def _models(name: str, setup: Setup, runs: Path) -> Finding:
    """Both models are there and agree with the setup's vocabulary and shapes."""
    if not prepare.are_there(setup, runs):
        return Finding(f"{name} models", "warn", "not made yet; the first submit makes them")
    for role in ("student", "teacher"):
        model = getattr(setup, role)
        prepare.check_config(f"{name}.{role}", model, prepare.checkpoint_of(model, setup, runs), setup)
    eos = f"EOS {setup.student.eos} (student), {setup.teacher.eos} (teacher) are one stop event"
    return Finding(f"{name} models", "ok", f"{setup.vocabulary.size} shared vocabulary rows; {eos}")


def _prompt(name: str, setup: Setup, experiment: Experiment, runs: Path) -> Finding:
    """One rendered prompt of a benchmark with its token ids; the student's tokenizer must agree where it has one."""
    if not prepare.are_there(setup, runs):
        return Finding(f"{name} prompt", "warn", "not checked: the models are not made yet")
    from transformers import AutoTokenizer

    from orchestrator.tasks.benchmarks import load_benchmark
    from orchestrator.tasks.prompts import render

    student, teacher = (
        AutoTokenizer.from_pretrained(prepare.checkpoint_of(model, setup, runs).path)
        for model in (setup.student, setup.teacher)
    )
    problem = load_benchmark(next(iter(setup.evaluation.benchmarks)), experiment.data_dir)[0]
    ids = render(problem.text, setup.prompt, teacher)
    if student.encode(problem.text) != teacher.encode(problem.text):
        return Finding(f"{name} prompt", "fail", f"the tokenizers of student and teacher disagree on {problem.text!r}")
    return Finding(f"{name} prompt", "ok", f"{teacher.decode(list(ids))!r} = {len(ids)} ids {list(ids)[:40]}")
