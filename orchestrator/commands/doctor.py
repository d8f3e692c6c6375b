"""`trb doctor`: is this machine ready, and does an experiment's setup hold together?"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from orchestrator.commands.arguments import (
    JSON,
    Parser,
    add_experiment,
    free_experiment,
    load,
    say_pins,
)
from orchestrator.commands.display import say
from orchestrator.commands.doctor_gpu import PAIR, SHOWN, check_gpu
from orchestrator.config import Experiment, Model, RoleName, Runtime, Setup
from orchestrator.cores import bound_cores, cores_here
from orchestrator.data.benchmarks import load_benchmark, overlap_lines
from orchestrator.data.problems import check_system
from orchestrator.engines.budget import Situation, budget
from orchestrator.engines.catalog import ENGINES, missing_tools, require_all
from orchestrator.engines.device import ALLOCATOR, has_driver
from orchestrator.engines.memory import GIB, Gpus, needs_gpu
from orchestrator.errors import UserError, shown
from orchestrator.experiment.units import batches_of
from orchestrator.grading.grader import Grader
from orchestrator.models import locate, make
from orchestrator.models.folders import stop_ids
from orchestrator.planning.numbers import counted
from orchestrator.planning.rates import DEFAULT_GPU, GPUS
from orchestrator.selection.study import Study
from orchestrator.selftest.endings import check_endings
from orchestrator.selftest.template import NOT_TRIED, check_template
from orchestrator.tracking.tracker import tracker_function

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MOST_IDS, LAST_IDS = 64, 8  # token ids shown of a prompt
SHARED_MEMORY = Path("/dev/shm")
SHARED_GIB = 1.0  # of shared memory on a machine with GPUs
# Checks of a setup that are made only if others have not failed.
NEEDED = {
    "prompt": ["models"],
    "template": ["models", "prompt"],
    "endings": ["models", "prompt"],
}


# What a check found: ok, warn or fail, and the detail of the `Finding`.
Verdict = tuple[str, str]
Checks = list[tuple[str, Callable[[], Verdict]]]  # name of a check, and the check


@dataclass(frozen=True)
class Finding:
    """One check: `verdict` is ok, warn or fail, and the first line of `detail` stands alone."""

    name: str
    verdict: str
    detail: str


def add(parser: Parser) -> None:
    add_experiment(parser, without="without one: the machine alone")
    parser.flag("--json", JSON)
    text = "minutes of real work on this machine's GPU: engines, memory, an update, a switch"
    parser.flag("--gpu", text)
    text = "with --gpu: tiny models of random weights, on CPUs if the machine has no GPU"
    parser.flag("--small", text)


def run(options: argparse.Namespace) -> int:
    if options.gpu:
        free_experiment(options)
        options.experiment = options.experiment or PAIR
        return check_gpu(load(options), options.small, options.json)
    if options.small:
        raise UserError("--small: not without --gpu: expected trb doctor --gpu --small")
    if options.experiment is None:
        return examine(None, options.json)
    study = load(options, announce=True)
    say_pins(study)
    return examine(study, options.json)


def examine(study: Study | None, as_json: bool) -> int:
    """Print all findings; 0 unless one of them is `fail`."""
    findings: list[Finding] = []
    for name, check in _checks(study):
        setup_name, _, subject = name.partition(" ")
        failed_checks = {finding.name for finding in findings if finding.verdict == "fail"}
        needed = [f"{setup_name} {other}" for other in NEEDED.get(subject, ())]
        if not failed_checks.isdisjoint(needed):
            continue  # it would report the same in other words
        finding = _run(name, check)
        for earlier in findings:
            # A key of a setup may stand in an earlier line with the setup's name before it.
            same = earlier.detail.endswith(finding.detail)
            if finding.verdict == earlier.verdict == "fail" and same:
                finding = Finding(name, "fail", f"as {earlier.name}")
        findings.append(finding)
        if not as_json:
            _show(finding)
    failed = sum(finding.verdict == "fail" for finding in findings)
    if as_json:
        print(json.dumps({"checks": [asdict(finding) for finding in findings]}, indent=2))
    else:
        _conclude(study, failed)
    return int(failed > 0)


def _checks(study: Study | None) -> Checks:
    """The checks of this machine, and those of an experiment."""
    checks: Checks = [
        ("devices", _devices),
        ("cores", _cores),
        ("memory", _memory),
        ("grader", _grader),
        ("gradient", _gradient),
    ]
    if any(name in os.environ for name in ALLOCATOR):
        checks.append(("allocator", _allocator))
    runtime = study.experiment.runtime if study else Runtime()
    if runtime.tracker == "wandb":
        checks.append(("wandb", partial(_wandb, runtime.wandb)))
    else:
        checks.append(("tracker", partial(_tracker, runtime.tracker)))
    if study is None:
        return checks
    experiment, runs = study.experiment, study.runs
    checks.append(("placement", partial(_placement, experiment)))
    if has_driver() and max(_gpus_asked(experiment)) and SHARED_MEMORY.is_dir():
        checks.append(("shared memory", _shared_memory))
    for name, setup in experiment.setups.items():
        sampler = setup.engine.sampler
        checks.append((f"{name} engine", partial(_engine, setup)))
        if ENGINES[sampler].tools and has_driver() and max(_gpus_asked(experiment)):
            checks.append((f"{name} compilers", partial(_compilers, sampler)))
        if needs_gpu(setup):
            checks.append((f"{name} GPU memory", partial(_gpu_memory, setup, experiment)))
        checks += [
            (f"{name} benchmarks", partial(_benchmarks, setup, experiment)),
            (f"{name} models", partial(_models, name, setup, runs)),
            (f"{name} prompt", partial(_prompt, name, setup, experiment, runs)),
            (f"{name} template", partial(_template, name, setup, experiment, runs)),
            (f"{name} endings", partial(_endings, name, setup, experiment, runs)),
        ]
    for name, setup in experiment.setups.items():  # last, since they may read for minutes
        batches = batches_of(study.units, name)
        check = partial(_training_data, setup, experiment, runs, batches)
        checks.append((f"{name} training data", check))
    return checks


def _conclude(study: Study | None, failed: int) -> None:
    """Print how many checks failed, or the command that comes next."""
    if failed:
        line = f"{counted(failed, 'check')} failed"
    elif study is None:
        line = "nothing failed; next: trb doctor EXP.yaml checks an experiment, too"
    else:
        line = f"nothing failed; next: {study.invocation.command('plan')}"
    say(Console(), line)


def _show(finding: Finding) -> None:
    """Print a line with the verdict, and further lines of the detail below it."""
    detail = escape(finding.detail).replace("\n", "\n     ")
    line = f"{SHOWN[finding.verdict]} {finding.name}: {detail}"
    Console().print(line, highlight=False, soft_wrap=True)


def _run(name: str, check: Callable[[], Verdict]) -> Finding:
    """Make a check; one that breaks is a finding too."""
    try:
        verdict, detail = check()
    except Exception as error:
        verdict, detail = "fail", " ".join(str(error).split())[:300]
    return Finding(name, verdict, detail)


def _gpus_asked(experiment: Experiment) -> list[float]:
    """GPUs that trials ask for, by the experiment and by its methods."""
    asked: list[float] = [experiment.runtime.placement.gpus]
    for placement in experiment.placements.values():
        asked.append(placement.gpus)
    return asked


# --- this machine ---


def _devices() -> Verdict:
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    gpu_words = " ".join([counted(len(gpus), "GPU"), *gpus])
    return "ok", f"{counted(cores_here(), 'CPU core')}, {gpu_words}; torch {torch.__version__}"


def _cores() -> Verdict:
    """Compare the cores of this process with those that Slurm and Ray count."""
    bound, machine = bound_cores(), os.cpu_count() or 1
    asked = os.environ.get("SLURM_CPUS_PER_TASK", "")
    if asked.isdigit() and int(asked) > bound:
        return "fail", (
            f"bound to {counted(bound, 'core')}, while SLURM_CPUS_PER_TASK={asked}: srun does not "
            f"inherit it from sbatch: srun --cpus-per-task={asked} --cpu-bind=none"
        )
    if bound < machine:
        return "ok", (
            f"bound to {bound} of {machine}; `ray start` counts all of them without "
            f"--num-cpus={bound}"
        )
    return "ok", f"bound to none of {machine}"


def _allocator() -> Verdict:
    """Name the variables of torch's allocator, with which an engine could not free its cache."""
    found = [f"{name}={os.environ[name]}" for name in ALLOCATOR if name in os.environ]
    return "ok", f"{' '.join(found)}: kept for trainers; SGLang's engines start without"


def _memory() -> Verdict:
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    except ValueError:  # macOS does not count free pages
        return "ok", "free memory is not known on this system; a laptop sweep wants 4 GiB"
    return "ok" if free > 4 else "warn", f"{free:.1f} GiB free; a laptop sweep wants 4"


def _grader() -> Verdict:
    with Grader() as grader:
        right = grader.grade("\\frac{1}{2}", "so it is \\boxed{0.5}").correct
        wrong = grader.grade("\\frac{1}{2}", "so it is \\boxed{0.25}").correct
    if right and not wrong:
        return "ok", "0.5 is one half and 0.25 is not"
    return "fail", "grades wrongly here"


def _gradient() -> Verdict:
    """The default objective's gradient against finite differences, in float64."""
    import torch

    from orchestrator.policy.objective import token_loss

    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 8, generator=generator, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(3, 8, generator=generator, dtype=torch.float64).log_softmax(-1)
    agree = torch.autograd.gradcheck(
        lambda x: token_loss("renormalized", x.log_softmax(-1), teacher), logits
    )
    return "ok" if agree else "fail", "renormalized reverse KL agrees with finite differences"


def _wandb(configured: str) -> Verdict:
    from orchestrator.tracking.wandb_tracker import chosen_mode, server_url  # imports wandb

    mode = chosen_mode(configured)
    if mode == "offline":
        return "ok", "offline; log in with `wandb login` to watch online"
    if mode == "disabled":
        return "ok", "disabled; nothing is mirrored"
    import requests

    url = server_url()
    try:
        requests.get(f"{url}/healthz", timeout=5)
    except requests.RequestException as error:
        return "warn", f"online, but {url} cannot be reached ({type(error).__name__})"
    return "ok", f"online, {url} answers"


def _tracker(name: str) -> Verdict:
    tracker_function(name)  # UserError where it is not found or not installed
    return "ok", f"{name} shows the runs"


# --- an experiment ---


def _placement(experiment: Experiment) -> Verdict:
    """Compare the GPUs that trials ask for with those here; large models fail without any."""
    import torch

    asked, here = _gpus_asked(experiment), torch.cuda.device_count()
    large = [name for name, setup in experiment.setups.items() if needs_gpu(setup)]
    if large and min(asked) == 0:
        return "fail", f"{', '.join(large)} on CPUs would take years: runtime.placement.gpus=1"
    most = counted(max(asked), "GPU")
    detail = f"a trial asks for {most}; this machine has {counted(here, 'GPU')}"
    if max(asked) > here:
        return "warn", f"{detail}: only a cluster can run it (trb submit --address)"
    return "ok", detail


def _engine(setup: Setup) -> Verdict:
    require_all(setup.engine)
    return "ok", f"{setup.engine.sampler} samples, {setup.engine.trainer} trains"


def _compilers(sampler: str) -> Verdict:
    """An engine that compiles kernels at first use would stop there, minutes after its start."""
    tools = missing_tools(sampler)
    if tools:
        return "fail", "\n".join([f"{sampler} lacks on this GPU's machine", *tools])
    return "ok", f"all that {sampler} compiles kernels with"


def _gpu_memory(setup: Setup, experiment: Experiment) -> Verdict:
    """Budget a trial's engines on the GPU here, else on the kind that plans assume."""
    import torch

    placement, runtime = experiment.runtime.placement, experiment.runtime
    share = placement.gpu_share
    gpu = GPUS[DEFAULT_GPU].part(share)
    gib, where = gpu.gib, f"{gpu.title}, since none is here"
    if torch.cuda.is_available():
        gib, where = torch.cuda.mem_get_info()[1] / GIB * share, torch.cuda.get_device_name()
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
    return "ok", "\n".join(lines)


def _shared_memory() -> Verdict:
    """Whether /dev/shm has room for Ray's object store and for NCCL, which containers often lack."""
    free = shutil.disk_usage(SHARED_MEMORY).free / GIB
    words = f"{free:.1f} GiB free in {SHARED_MEMORY}; Ray's store and NCCL take {SHARED_GIB:g}"
    if free >= SHARED_GIB:
        return "ok", words
    return "fail", (
        f"{words}: docker run --shm-size=8g; in Kubernetes an emptyDir with medium Memory; "
        f"else mount -o remount,size=8G {SHARED_MEMORY}"
    )


def _benchmarks(setup: Setup, experiment: Experiment) -> Verdict:
    sizes = []
    for key, run in setup.evaluation.benchmarks.items():
        problems = load_benchmark(key, experiment.data_dir, run)
        check_system(problems, setup.prompt.system)
        sizes.append(f"{key} ({len(problems):,} problems)")
    return "ok", f"{', '.join(sizes)}; as declared"


def _models(name: str, setup: Setup, runs: Path) -> Verdict:
    """Both models are here, fit the setup's vocabulary and shapes, and share their token ids."""
    from orchestrator.sweep.prepare import check_models

    if not make.are_there(setup, runs):
        return "warn", "not made yet; the first submit makes them"
    check_models(name, setup, runs)
    eos = f"EOS {setup.student.eos} (student), {setup.teacher.eos} (teacher) are one stop event"
    lines = [f"{setup.vocabulary.size} shared vocabulary rows; {eos}"]
    for role in ("student", "teacher"):
        model: Model = getattr(setup, role)
        folder = None if model.recipe else locate.lies_here(model, setup, runs)
        if folder is not None:
            of_files = replace(model, eos=stop_ids(f"{name}.{role}", folder)).stop_ids
            # The student's ids are in the event for the teacher too, and not the other way round.
            left_out = {*of_files} - {*model.stop_ids, *setup.student.stop_ids}
            if left_out:
                ids = ", ".join(map(str, sorted(left_out)))
                lines.append(f"{name}.{role}.eos: {model.eos}: expected also {ids}, as in {folder}")
    return "ok" if len(lines) == 1 else "warn", "\n".join(lines)


def _training_data(setup: Setup, experiment: Experiment, runs: Path, batches: int) -> Verdict:
    """Select the prompts of all steps, as every trial will, and count what was left out."""
    from orchestrator.data.openthoughts import needs_scan
    from orchestrator.data.training_set import load_training_set

    tokenizer = _tokenizer(setup.teacher, setup, runs)
    if setup.data.source == "openthoughts" and needs_scan(setup.data):
        reading = f"trb: reading all rows of {setup.data.path} once; this takes minutes"
        print(reading, file=sys.stderr)
    chosen = load_training_set(setup, experiment.data_dir, tokenizer, batches)
    total = len(chosen.prompts)
    order = f"{total:,} prompts in one order for all methods"
    lines = [f"{order}; {chosen.too_long:,} too long were passed over"]
    left_out = [f"{count:,} {what.replace('_', ' ')}" for what, count in chosen.rows.items()]
    if left_out:
        lines.append(f"the source: {', '.join(left_out)}")
    golds = []
    for what, count in chosen.golds.items():
        examples = ""
        if what == "differing":
            for text, answers in chosen.differing.items():
                examples += f'; "{text}": {", ".join(answers)}'
        golds.append(f"{what.replace('_', ' ')} {count:,} ({count / total:.1%}{examples})")
    lines.append(f"golds: {', '.join(golds)}")
    lines += overlap_lines(setup, chosen.overlap, total)
    is_clean = not chosen.differing and not any(row["problems"] for row in chosen.overlap.values())
    return "ok" if is_clean else "warn", "\n".join(lines)


def _template(name: str, setup: Setup, experiment: Experiment, runs: Path) -> Verdict:
    """The cost of the prompt to the teacher, if it is not the teacher's own template."""
    detail = check_template(name, setup, experiment, runs, on_gpu=True)
    return "warn" if detail.startswith(NOT_TRIED) else "ok", detail


def _endings(name: str, setup: Setup, experiment: Experiment, runs: Path) -> Verdict:
    """The shares of the models' answers that end with the pair's stop tokens."""
    detail = check_endings(name, setup, experiment, runs)
    return "warn" if detail.startswith(NOT_TRIED) else "ok", detail


def _prompt(name: str, setup: Setup, experiment: Experiment, runs: Path) -> Verdict:
    """Render a prompt with its token ids, which student and teacher must read alike."""
    from orchestrator.data.prompts import check_rendering, own_system_message, render

    benchmark, run = next(iter(setup.evaluation.benchmarks.items()))
    problem = load_benchmark(benchmark, experiment.data_dir, run)[0]
    student = _tokenizer(setup.student, setup, runs)
    teacher = _tokenizer(setup.teacher, setup, runs)
    if student.encode(problem.text) != teacher.encode(problem.text):
        return "fail", f"the tokenizers of student and teacher disagree on {problem.text!r}"
    check_rendering(name, problem.text, setup.prompt, teacher)
    ids = render(problem.text, setup.prompt, teacher)
    lines = [f"{benchmark} {problem.id}, {len(ids)} tokens"]
    added = own_system_message(problem.text, setup.prompt, teacher)
    if added is not None:
        lines.append(f"the chat template adds a system message of its own: {shown(added)}")
    for line in str(teacher.decode(list(ids))).split("\n"):
        lines.append(f"│ {line}")
    words = list(map(str, ids))
    if len(ids) > MOST_IDS:
        words[MOST_IDS - LAST_IDS : -LAST_IDS] = [f"… {len(ids) - MOST_IDS} more …"]
    lines.append(" ".join(words))
    return "ok", "\n".join(lines)


def _tokenizer(model: Model, setup: Setup, runs: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of one model; an embedded one is known before its model is made."""
    if model.recipe is not None and model.recipe.is_embedded:
        from orchestrator.models.recipes import make_tokenizer

        return make_tokenizer(setup.tokenizer or "")
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(locate.checkpoint_of(model, setup, runs).path)
