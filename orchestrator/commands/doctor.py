"""`trb doctor`: is this machine ready, and does an experiment's setup hold together?"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from orchestrator.config import Experiment, Model, RoleName, Runtime, Setup
from orchestrator.cores import cores_here
from orchestrator.data.benchmarks import load_benchmark
from orchestrator.engines.budget import Situation, budget
from orchestrator.engines.catalog import ENGINES, missing_tools, require_all
from orchestrator.engines.device import has_driver
from orchestrator.engines.memory import GIB, Gpus, needs_gpu
from orchestrator.grading.grader import Grader
from orchestrator.models import checkpoints, making
from orchestrator.planning.numbers import counted
from orchestrator.planning.rates import DEFAULT_GPU, GPUS
from orchestrator.selection.study import Study
from orchestrator.selftest.endings import check_endings
from orchestrator.selftest.template import NOT_TRIED, check_template
from orchestrator.tracking.login import chosen_mode, server_url
from orchestrator.tracking.tracker import tracker_function

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SIGNS = {"ok": "[green]ok[/]  ", "warn": "[yellow]warn[/]", "fail": "[red]fail[/]"}
MOST_IDS, LAST_IDS = 64, 8  # token ids shown of a prompt


@dataclass(frozen=True)
class Finding:
    """One check: `verdict` is ok, warn or fail; `detail` is one line, or several of which the first
    stands alone.
    """

    name: str
    verdict: str
    detail: str


def examine(study: Study | None, as_json: bool) -> int:
    """Print all findings; 0 unless one of them is `fail`."""
    checks: list[tuple[str, Callable[[], Finding]]] = [
        ("devices", _devices),
        ("memory", _memory),
        ("grader", _grader),
        ("gradient", _gradient),
    ]
    runtime = study.experiment.runtime if study else Runtime()
    if runtime.tracker == "wandb":
        checks.append(("wandb", lambda: _wandb(runtime.wandb)))
    else:
        checks.append(("tracker", lambda: _tracker(runtime.tracker)))
    if study:
        experiment, runs = study.experiment, study.runs
        checks.append(("placement", lambda: _placement(experiment)))
        asks_for_gpu = any(
            p.gpus for p in [experiment.runtime.placement, *experiment.placements.values()]
        )
        for name, setup in experiment.setups.items():
            checks.append((f"{name} engine", partial(_engine, name, setup)))
            if ENGINES[setup.engine.sampler].tools and has_driver() and asks_for_gpu:
                checks.append(
                    (f"{name} compilers", partial(_compilers, name, setup.engine.sampler))
                )
            if needs_gpu(setup):
                checks.append((f"{name} GPU memory", partial(_gpu_memory, name, setup, experiment)))
            checks += _setup_checks(name, setup, experiment, runs)
        for name, setup in experiment.setups.items():  # last, since they may read for minutes
            checks.append(
                (f"{name} training data", partial(_training_data, name, setup, experiment, runs))
            )
    findings: list[Finding] = []
    for name, check in checks:
        setup_name, _, of = name.rpartition(" ")
        if of in ("prompt", "template", "endings") and any(
            (f.name, f.verdict) == (f"{setup_name} models", "fail") for f in findings
        ):
            continue  # transformers would report the same models in words of its own
        findings.append(_once(_run(name, check), findings))
        if not as_json:
            _show(findings[-1])
    if as_json:
        print(json.dumps({"checks": [asdict(finding) for finding in findings]}, indent=2))
    failed = sum(finding.verdict == "fail" for finding in findings)
    if not as_json:
        _conclude(study, failed)
    return int(failed > 0)


def _conclude(study: Study | None, failed: int) -> None:
    """How many checks failed, or the command that comes next."""
    if failed:
        line = f"{failed} check{'s' * (failed > 1)} failed"
    else:
        following = (
            "trb doctor EXP.yaml checks an experiment, too"
            if study is None
            else study.invocation.command("plan")
        )
        line = f"nothing failed; next: {following}"
    Console().print(line, highlight=False, markup=False, soft_wrap=True)


def _once(finding: Finding, earlier: list[Finding]) -> Finding:
    """The finding; one that failed for a reason that was given already only says where."""
    if finding.verdict == "fail":
        for other in earlier:
            if (other.verdict, other.detail) == ("fail", finding.detail):
                return replace(finding, detail=f"as {other.name}")
    return finding


def _show(finding: Finding) -> None:
    """A line with the verdict; further lines of the detail below it."""
    first, *rest = escape(finding.detail).split("\n")
    lines = [
        f"{SIGNS[finding.verdict]} {finding.name}: {first}",
        *(f"     {line}" for line in rest),
    ]
    Console().print("\n".join(lines), highlight=False, soft_wrap=True)


def _run(name: str, check: Callable[[], Finding]) -> Finding:
    """A check that breaks is a finding too."""
    try:
        return check()
    except Exception as error:
        return Finding(name, "fail", " ".join(str(error).split())[:300])


def _devices() -> Finding:
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    words = ", ".join(
        [counted(cores_here(), "CPU core"), " ".join([counted(len(gpus), "GPU"), *gpus])]
    )
    return Finding("devices", "ok", f"{words}; torch {torch.__version__}")


def _memory() -> Finding:
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    except ValueError:  # macOS does not count free pages
        return Finding(
            "memory", "ok", "free memory is not known on this system; a laptop sweep wants 4 GiB"
        )
    return Finding(
        "memory", "ok" if free > 4 else "warn", f"{free:.1f} GiB free; a laptop sweep wants 4"
    )


def _grader() -> Finding:
    with Grader() as grader:
        right = grader.grade("\\frac{1}{2}", "so it is \\boxed{0.5}").correct
        wrong = grader.grade("\\frac{1}{2}", "so it is \\boxed{0.25}").correct
    verdict = "ok" if right and not wrong else "fail"
    return Finding(
        "grader",
        verdict,
        "0.5 is one half and 0.25 is not" if verdict == "ok" else "grades wrongly here",
    )


def _gradient() -> Finding:
    """The default objective's gradient against finite differences, in float64."""
    import torch

    from orchestrator.policy.objective import token_loss

    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 8, generator=generator, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(3, 8, generator=generator, dtype=torch.float64).log_softmax(-1)
    right = torch.autograd.gradcheck(
        lambda x: token_loss("renormalized", x.log_softmax(-1), teacher), logits
    )
    return Finding(
        "gradient",
        "ok" if right else "fail",
        "renormalized reverse KL agrees with finite differences",
    )


def _wandb(wish: str) -> Finding:
    mode = chosen_mode(wish)
    if mode != "online":
        hint = (
            "log in with `wandb login` to watch online"
            if mode == "offline"
            else "nothing is mirrored"
        )
        return Finding("wandb", "ok", f"{mode}; {hint}")
    import requests

    url = server_url()
    try:
        requests.get(f"{url}/healthz", timeout=5)
    except requests.RequestException as error:
        return Finding(
            "wandb", "warn", f"online, but {url} cannot be reached ({type(error).__name__})"
        )
    return Finding("wandb", "ok", f"online, {url} answers")


def _tracker(name: str) -> Finding:
    tracker_function(name)  # UserError where it is not found or not installed
    return Finding("tracker", "ok", f"{name} shows the runs")


def _placement(experiment: Experiment) -> Finding:
    """GPUs that trials ask for against those of this machine; a pair that needs one never goes
    without a word.
    """
    import torch

    asked = [p.gpus for p in [experiment.runtime.placement, *experiment.placements.values()]]
    here = torch.cuda.device_count()
    large = [name for name, setup in experiment.setups.items() if needs_gpu(setup)]
    found = (
        f"a trial asks for {counted(max(asked), 'GPU')}; this machine has {counted(here, 'GPU')}"
    )
    if large and min(asked) == 0:
        return Finding(
            "placement",
            "fail",
            f"{', '.join(large)} on CPUs would take years: runtime.placement.gpus=1",
        )
    if max(asked) > here:
        return Finding(
            "placement", "warn", f"{found}: only a cluster can run it (trb submit --address)"
        )
    return Finding("placement", "ok", found)


def _engine(name: str, setup: Setup) -> Finding:
    require_all(setup.engine)
    return Finding(
        f"{name} engine", "ok", f"{setup.engine.sampler} samples, {setup.engine.trainer} trains"
    )


def _compilers(name: str, sampler: str) -> Finding:
    """An engine that compiles kernels at first use would stop there, minutes after its start."""
    lacking = missing_tools(sampler)
    if lacking:
        return Finding(
            f"{name} compilers",
            "fail",
            "\n".join([f"{sampler} lacks on this GPU's machine", *lacking]),
        )
    return Finding(f"{name} compilers", "ok", f"all that {sampler} compiles kernels with")


def _gpu_memory(name: str, setup: Setup, experiment: Experiment) -> Finding:
    """Check the memory that a trial's engines take: of the GPU here, else of the kind that plans
    assume.
    """
    import torch

    share = experiment.runtime.placement.gpu_share
    gpu = GPUS[DEFAULT_GPU].part(share)
    gib, where = gpu.gib, f"{gpu.title}, since none is here"
    if torch.cuda.is_available():
        gib, where = torch.cuda.mem_get_info()[1] / GIB * share, torch.cuda.get_device_name()
    placement, runtime = experiment.runtime.placement, experiment.runtime
    roles: dict[Situation, RoleName] = {
        "decoding": "rollout",
        "blending": "rollout",
        "scoring": "teacher",
        "learning": "learner",
    }
    lines = [f"{gib:.1f} GiB ({where}), of which on each GPU"]
    for situation, role in roles.items():
        lines.append(str(budget(setup, runtime, gib, situation, Gpus.of(placement, role))))
    lines.append(str(budget(setup, runtime, gib, "evaluating")))
    return Finding(f"{name} GPU memory", "ok", "\n".join(lines))


def _setup_checks(
    name: str, setup: Setup, experiment: Experiment, runs: Path
) -> list[tuple[str, Callable[[], Finding]]]:
    return [
        (f"{name} benchmarks", lambda: _benchmarks(name, setup, experiment)),
        (f"{name} models", lambda: _models(name, setup, runs)),
        (f"{name} template", lambda: _template(name, setup, experiment, runs)),
        (f"{name} endings", lambda: _endings(name, setup, experiment, runs)),
        (f"{name} prompt", lambda: _prompt(name, setup, experiment, runs)),
    ]


def _benchmarks(name: str, setup: Setup, experiment: Experiment) -> Finding:
    benchmarks = setup.evaluation.benchmarks
    sizes = {
        key: len(load_benchmark(key, experiment.data_dir, run)) for key, run in benchmarks.items()
    }
    shown = ", ".join(f"{key} ({size:,} problems)" for key, size in sizes.items())
    return Finding(f"{name} benchmarks", "ok", f"{shown}; as declared")


def _models(name: str, setup: Setup, runs: Path) -> Finding:
    """Both models are there, agree with the setup's vocabulary and shapes, and share their token
    ids.
    """
    from orchestrator.sweep.prepare import check_models

    if not making.are_there(setup, runs):
        return Finding(f"{name} models", "warn", "not made yet; the first submit makes them")
    check_models(name, setup, runs)
    eos = f"EOS {setup.student.eos} (student), {setup.teacher.eos} (teacher) are one stop event"
    return Finding(f"{name} models", "ok", f"{setup.vocabulary.size} shared vocabulary rows; {eos}")


def _training_data(name: str, setup: Setup, experiment: Experiment, runs: Path) -> Finding:
    """The prompts of all steps are selected, as every trial will; what the data hold and what was
    left out.
    """
    from orchestrator.data.openthoughts import needs_scan
    from orchestrator.data.training_set import load_training_set

    tokenizer = _tokenizer(setup.teacher, setup, runs)
    if setup.data.source == "openthoughts" and needs_scan(setup.data):
        print(
            f"trb: reading all rows of {setup.data.path} once; this takes minutes", file=sys.stderr
        )
    chosen = load_training_set(setup, experiment.data_dir, tokenizer)
    total = len(chosen.prompts)
    left_out = [f"{count:,} {what.replace('_', ' ')}" for what, count in chosen.rows.items()]
    golds = [
        f"{what.replace('_', ' ')} {count:,} ({count / total:.1%})"
        for what, count in chosen.golds.items()
    ]
    lines = [
        f"{total:,} prompts in one order for all methods; {chosen.too_long:,} too long were passed over",
        *([f"the source: {', '.join(left_out)}"] if left_out else []),
        f"golds: {', '.join(golds)}",
    ]
    return Finding(f"{name} training data", "ok", "\n".join(lines))


def _template(name: str, setup: Setup, experiment: Experiment, runs: Path) -> Finding:
    """The cost of the prompt to the teacher, if it is not the teacher's own template."""
    detail = check_template(name, setup, experiment, runs, on_gpu=True)
    verdict = "warn" if detail.startswith(NOT_TRIED) else "ok"
    return Finding(f"{name} template", verdict, detail)


def _endings(name: str, setup: Setup, experiment: Experiment, runs: Path) -> Finding:
    """The share of the teacher's answers that end with the pair's stop token."""
    detail = check_endings(name, setup, experiment, runs, on_gpu=True)
    verdict = "warn" if detail.startswith(NOT_TRIED) else "ok"
    return Finding(f"{name} endings", verdict, detail)


def _prompt(name: str, setup: Setup, experiment: Experiment, runs: Path) -> Finding:
    """One rendered prompt of a benchmark with its token ids; student and teacher must read it
    alike.
    """
    from orchestrator.data.prompts import render

    benchmark, run = next(iter(setup.evaluation.benchmarks.items()))
    problem = load_benchmark(benchmark, experiment.data_dir, run)[0]
    student, teacher = (_tokenizer(model, setup, runs) for model in (setup.student, setup.teacher))
    ids = render(problem.text, setup.prompt, teacher)
    if student.encode(problem.text) != teacher.encode(problem.text):
        return Finding(
            f"{name} prompt",
            "fail",
            f"the tokenizers of student and teacher disagree on {problem.text!r}",
        )
    text = "\n".join(f"│ {line}" for line in str(teacher.decode(list(ids))).split("\n"))
    return Finding(
        f"{name} prompt",
        "ok",
        f"{benchmark} {problem.id}, {len(ids)} tokens\n{text}\n{_shown_ids(ids)}",
    )


def _tokenizer(model: Model, setup: Setup, runs: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of one model; an embedded one is known before its model is made."""
    if model.recipe is not None:
        from orchestrator.models.embedded import make_tokenizer

        return make_tokenizer(setup.tokenizer or "")
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(checkpoints.checkpoint_of(model, setup, runs).path)


def _shown_ids(ids: tuple[int, ...]) -> str:
    """All ids, or both ends of many."""
    if len(ids) <= MOST_IDS:
        return " ".join(map(str, ids))
    ends = [" ".join(map(str, part)) for part in (ids[: MOST_IDS - LAST_IDS], ids[-LAST_IDS:])]
    return f"{ends[0]} … {len(ids) - MOST_IDS} more … {ends[1]}"
