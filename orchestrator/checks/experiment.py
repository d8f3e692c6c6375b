"""Checks an experiment: its placement, and for each setup engines, memory, data, models, prompts.

No check here loads torch before it has to: `trb submit` makes some of them before Ray starts, so
that mistakes are named within a second.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.checks.check import Found
from orchestrator.config import Experiment, PromptTemplate, Runtime, Setup
from orchestrator.data.benchmarks import load_benchmark, overlap_lines
from orchestrator.data.files import check_hub_id
from orchestrator.data.openthoughts import load_thoughts
from orchestrator.data.problems import check_rows, check_system
from orchestrator.engines.budget import budget
from orchestrator.engines.catalog import require_all
from orchestrator.engines.device import has_driver
from orchestrator.engines.interface import Job, Limits, ModelFolder, Owner
from orchestrator.engines.memory import GIB, needs_gpu
from orchestrator.errors import UserError, one_line, shown
from orchestrator.experiment.units import batches_of, widest_setup
from orchestrator.models import locate, make
from orchestrator.models.folders import check_folder, stop_ids
from orchestrator.models.locate import check_config, check_same_tokens, checkpoint_of
from orchestrator.models.make import check_package, must_make, tokenizer_of, verify_made
from orchestrator.pair import Model
from orchestrator.planning.numbers import counted
from orchestrator.planning.plan import situations
from orchestrator.planning.rates import DEFAULT_GPU, GPUS
from orchestrator.selection.study import Study
from orchestrator.sweep.prepare import check_passes_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MOST_IDS, LAST_IDS = 64, 8  # token ids shown of a prompt
PLAIN = PromptTemplate(kind="plain")
SOME_PROBLEM = "1+1=?"
# Nats a token: twice what rounding in bfloat16 may do (`workers.canary`), and a third of the
# mismatch that is known to have spoilt a reproduction.
MOST_NATS = 0.1
ASKED, TOKENS = 4, 32  # greedy answers of the teacher, and the length at which they are cut
# A teacher that answers ends nearly always; one whose stop token is another id ends by chance. The
# bound lies far from both, since long answers are cut at the setup's limit.
LEAST_SHARE = 0.1
SAMPLED, LONGEST = 16, 2048  # answers, and the most tokens of each


@dataclass(frozen=True)
class CheckedSetup:
    """A setup of that name, of which a trial trains on `batches` batches at most."""

    name: str
    setup: Setup
    runs: Path
    batches: int = 0
    data_dir: str | None = None
    runtime: Runtime = field(default_factory=Runtime)

    def model(self, owner: Owner) -> Model:
        return self.setup.student if owner == "student" else self.setup.teacher

    def checkpoint(self, owner: Owner) -> ModelFolder:
        """The folder of a model, downloaded if need be."""
        return checkpoint_of(self.model(owner), self.setup, self.runs)

    def tokenizer(self, owner: Owner) -> PreTrainedTokenizerBase:
        return tokenizer_of(self.model(owner), self.setup, self.checkpoint(owner).path)


def checked_setup(study: Study, name: str) -> CheckedSetup:
    """A setup of a study for the checks."""
    asked, batches = study.experiment, batches_of(study.units, name)
    setup = widest_setup(asked, name)
    return CheckedSetup(name, setup, study.runs, batches, asked.data_dir, asked.runtime)


def gpus_asked(experiment: Experiment) -> list[float]:
    """GPUs that trials ask for, by the experiment and by its methods."""
    asked: list[float] = [experiment.runtime.placement.gpus]
    for of_method in experiment.placements.values():
        asked.append(of_method.gpus)
    return asked


def placement(experiment: Experiment) -> Found:
    """Compare the GPUs that trials ask for with those here; large models fail without any."""
    import torch

    asked, here = gpus_asked(experiment), torch.cuda.device_count()
    large = [name for name, setup in experiment.setups.items() if needs_gpu(setup)]
    if large and min(asked) == 0:
        words = f"{', '.join(large)} on CPUs would take years: runtime.placement.gpus=1"
        return Found("fail", words)
    most = counted(max(asked), "GPU")
    words = f"a trial asks for {most}; this machine has {counted(here, 'GPU')}"
    if max(asked) > here:
        return Found("warn", f"{words}: only a cluster can run it (trb submit --address)")
    return Found("ok", words)


# --- engines and memory of a setup ---


def engine(of: CheckedSetup) -> Found:
    """Check that the engines are installed."""
    chosen = of.setup.engine
    require_all(chosen)
    return Found("ok", f"{chosen.sampler} samples, {chosen.trainer} trains")


def gpu_memory(of: CheckedSetup) -> Found:
    """Budget a trial's engines on the GPU here, else on the kind that plans assume."""
    import torch

    runtime = of.runtime
    share = runtime.placement.gpu_share
    gpu = GPUS[DEFAULT_GPU].part(share)
    gib, where = gpu.gib, f"{gpu.title}, since none is here"
    if torch.cuda.is_available():
        gib, where = torch.cuda.mem_get_info()[1] / GIB * share, torch.cuda.get_device_name()
    lines = [f"{gib:.1f} GiB ({where}), of which on each GPU"]
    for situation, gpus in situations(runtime.placement).items():
        lines.append(str(budget(of.setup, runtime, gib, situation, gpus)))
    return Found("ok", "\n".join(lines))


# --- data and models ---


def training_files(of: CheckedSetup) -> Found:
    """Check that training prompts can be read, and that local files have enough for all batches.

    Data of a hub are checked when loaded.
    """
    key, data = f"{of.name}.data", of.setup.data
    if data.source == "jsonl":
        if not data.files:
            raise UserError(f"{key}.files: empty: expected at least one {{file, sha256}}")
        check_rows(of.setup, of.data_dir, of.batches)
    elif data.source == "openthoughts":
        if not data.path:
            expected = "expected a hub id, or a local parquet or JSON Lines file"
            raise UserError(f"{key}.path: not set: {expected}")
        if Path(data.path).exists():
            load_thoughts(data)
        else:
            check_hub_id(key, data.path, data.revision)
    return Found("ok", f"training prompts from {data.source}")


def benchmarks(of: CheckedSetup) -> Found:
    """Read the benchmarks, and count their problems."""
    sizes: list[str] = []
    for key, run in of.setup.evaluation.benchmarks.items():
        problems = load_benchmark(key, of.data_dir, run)
        check_system(problems, of.setup.prompt.system)
        sizes.append(f"{key} ({len(problems):,} problems)")
    return Found("ok", f"{', '.join(sizes)}; as declared")


def check_models(name: str, setup: Setup, runs: Path) -> None:
    """Raise UserError unless the existing models are the declared ones and agree with the setup."""
    existing: dict[str, ModelFolder] = {}
    for role in ("student", "teacher"):
        model: Model = getattr(setup, role)
        if must_make(model, setup, runs):
            assert model.recipe is not None
            check_package(f"{name}.{role}", model.recipe)
        else:
            verify_made(model, setup, runs)
            existing[role] = checkpoint_of(model, setup, runs)
            check_config(f"{name}.{role}", model, existing[role], setup)
    for role, checkpoint in existing.items():
        if getattr(setup, role).recipe is None:  # all bytes of a made model were compared
            check_folder(f"{name}.{role}", Path(checkpoint.path), tokenizer=role == "teacher")
    if len(existing) == 2:
        check_same_tokens(name, existing["student"], existing["teacher"])
    for role, checkpoint in existing.items():
        check_passes_of(name, role, setup, checkpoint)


def models(of: CheckedSetup) -> Found:
    """Check that both models are here, fit the setup, and share their token ids."""
    setup = of.setup
    check_models(of.name, setup, of.runs)
    if not make.are_there(setup, of.runs):
        return Found("warn", "not made yet; the first submit makes them")
    eos = f"EOS {setup.student.eos} (student), {setup.teacher.eos} (teacher) are one stop event"
    lines = [f"{setup.vocabulary.size} shared vocabulary rows; {eos}"]
    owners: tuple[Owner, ...] = ("student", "teacher")
    for owner in owners:
        model = of.model(owner)
        folder = None if model.recipe else locate.lies_here(model, setup, of.runs)
        if folder is None:
            continue
        key = f"{of.name}.{owner}"
        of_files = replace(model, eos=stop_ids(key, folder)).stop_ids
        # The student's ids are in the event for the teacher too, and not the other way round.
        left_out = {*of_files} - {*model.stop_ids, *setup.student.stop_ids}
        if left_out:
            ids = ", ".join(map(str, sorted(left_out)))
            lines.append(f"{key}.eos: {model.eos}: expected also {ids}, as in {folder}")
    return Found("ok" if len(lines) == 1 else "warn", "\n".join(lines))


def training_data(of: CheckedSetup) -> Found:
    """Select the prompts of all steps, as every trial will, and count what was left out."""
    from orchestrator.data.openthoughts import needs_scan
    from orchestrator.data.training_set import load_training_set

    setup = of.setup
    tokenizer = of.tokenizer("teacher")
    if setup.data.source == "openthoughts" and needs_scan(setup.data):
        reading = f"trb: reading all rows of {setup.data.path} once; this takes minutes"
        print(reading, file=sys.stderr)
    chosen = load_training_set(setup, of.data_dir, tokenizer, of.batches)
    total = len(chosen.prompts)
    per_seed = (
        "an order for each seed, shared by" if setup.training.order_per_seed else "one order for"
    )
    order = f"{total:,} prompts in {per_seed} all methods"
    lines = [f"{order}; {chosen.too_long:,} too long were passed over"]
    left_out = [f"{count:,} {what.replace('_', ' ')}" for what, count in chosen.rows.items()]
    if left_out:
        lines.append(f"the source: {', '.join(left_out)}")
    golds: list[str] = []
    for what, count in chosen.golds.items():
        examples = ""
        if what == "differing":
            for text, answers in chosen.differing.items():
                examples += f'; "{text}": {", ".join(answers)}'
        golds.append(f"{what.replace('_', ' ')} {count:,} ({count / total:.1%}{examples})")
    lines.append(f"golds: {', '.join(golds)}")
    lines += overlap_lines(setup, chosen.overlap, total)
    is_clean = not chosen.differing and not any(row["problems"] for row in chosen.overlap.values())
    return Found("ok" if is_clean else "warn", "\n".join(lines))


def renders(of: CheckedSetup) -> Found:
    """Check that the teacher's tokenizer can render the first problem of a benchmark.

    Template and system message meet here, before Ray starts. A teacher that is not on this machine
    yet is not tried. Embedded tokenizers read plain prompts alike, and take no seconds to import.
    Without the benchmark's file, which a plan may lack, another problem is rendered.
    """
    setup, teacher = of.setup, of.setup.teacher
    made = teacher.recipe is not None
    if made and setup.prompt.kind == "plain":
        return Found("ok", "plain")
    folder = None if made else locate.lies_here(teacher, setup, of.runs)
    if not made and folder is None:
        return Found("skipped", "the teacher is not here")
    from orchestrator.data.prompts import check_rendering

    try:
        tokenizer = tokenizer_of(teacher, setup, str(folder))
    except Exception as error:  # of a library that reads a file of the user
        words = f"its tokenizer cannot be opened ({one_line(error)})"
        raise UserError(f"{of.name}.teacher: {folder}: {words}") from None
    problem = SOME_PROBLEM
    with suppress(UserError):  # `benchmarks` says so
        problem = _problems(of, 1)[0]
    check_rendering(of.name, problem, setup.prompt, tokenizer)
    return Found("ok", "rendered")


def prompt(of: CheckedSetup) -> Found:
    """Render a prompt with its token ids, which student and teacher must read alike."""
    from orchestrator.data.prompts import check_rendering, own_system_message, render

    setup = of.setup
    benchmark, run = next(iter(setup.evaluation.benchmarks.items()))
    problem = load_benchmark(benchmark, of.data_dir, run)[0]
    student = of.tokenizer("student")
    teacher = of.tokenizer("teacher")
    if student.encode(problem.text) != teacher.encode(problem.text):
        words = f"the tokenizers of student and teacher disagree on {problem.text!r}"
        return Found("fail", words)
    check_rendering(of.name, problem.text, setup.prompt, teacher)
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
    return Found("ok", "\n".join(lines))


# --- the prompt's template beside the teacher's own ---
#
# A teacher that gets prompts unlike those of its training answers worse: its log-probabilities
# sink, and with them every target of the student. No loss shows that. Elsewhere such a mismatch
# cost 0.29 nats a token and a failed reproduction (tinker-cookbook, issue 796).


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


def template(of: CheckedSetup, on_gpu: bool = True) -> Found:
    """Check the cost of the prompt to the teacher; UserError if it is more than the bound.

    Models that are not made yet are not tried. Models that need a GPU are tried `on_gpu` alone: the
    process then holds some of its memory until it ends.
    """
    setup = of.setup
    if asks_as_its_own(setup):
        return Found("ok", "the prompt is the teacher's own template")
    untried = _why_untried(of, on_gpu)
    if untried is not None:
        return untried
    folder = Path(of.checkpoint("teacher").path)
    if not _is_embedded(setup.teacher) and not has_chat_template(folder):
        return Found("ok", "the teacher has no chat template of its own")
    cost = nats_apart(of)
    if cost > MOST_NATS:
        raise UserError(
            f"{of.name}.prompt: {cost:.2f} nats a token under the teacher's own template: expected "
            f"at most {MOST_NATS:g}, or kind: {own_template(setup).kind} without a system message"
        )
    words = f"{cost:.3f} nats a token under the teacher's own template, {MOST_NATS:g} allowed"
    return Found("ok", words, numbers={"nats": cost})


def _why_untried(of: CheckedSetup, on_gpu: bool) -> Found | None:
    """The finding if the models cannot be tried here; None if they can."""
    if not make.are_there(of.setup, of.runs):
        return Found("skipped", "not tried: the models are not made yet")
    if needs_gpu(of.setup) and not (on_gpu and has_driver()):
        where = "trb doctor EXP.yaml on a machine with one tries it"
        return Found("skipped", f"not tried: the models need a GPU; {where}")
    return None


def has_chat_template(folder: Path) -> bool:
    """Whether a model's folder holds a chat template. Needs no transformers, which takes seconds."""
    if (folder / "chat_template.jinja").exists():
        return True
    config = folder / "tokenizer_config.json"
    if not config.exists():
        return False
    return bool(json.loads(config.read_text(encoding="utf-8")).get("chat_template"))


def nats_apart(of: CheckedSetup) -> float:
    """Nats per token by which the teacher's greedy answers are likelier under its own template."""
    from orchestrator.data.prompts import render
    from orchestrator.engines.common.causal import log_probs_of
    from orchestrator.engines.torch.engine import ModelStore

    setup = of.setup
    tokenizer = of.tokenizer("teacher")
    store = ModelStore(_job(of))
    lost = counted_tokens = 0.0
    for text in _problems(of, ASKED):
        asked = render(text, own_template(setup), tokenizer)
        answer, known = _greedy(store.teacher, asked, setup.student.closing_id)
        ids = [*render(text, setup.prompt, tokenizer), *answer]
        lost += sum(known) - sum(log_probs_of(store.teacher, ids)[-len(answer) :])
        counted_tokens += len(answer)
    store.drop_all()
    return lost / counted_tokens


def _greedy(teacher: Any, asked: Sequence[int], eos: int) -> tuple[list[int], list[float]]:
    """The teacher's most likely answer, token by token, and the log-probabilities of its tokens.

    It ends with `eos`, as which the pair's stop event is emitted.
    """
    import torch

    answer: list[int] = []
    known: list[float] = []
    with torch.no_grad():
        while len(answer) < TOKENS and (not answer or answer[-1] != eos):
            row = torch.tensor([[*asked, *answer]], device=teacher.device)
            hidden = teacher.hidden(row, torch.ones_like(row))[0]
            log_p = teacher.log_prob(teacher.head(hidden[-1:]))
            answer.append(int(log_p[0].argmax()))
            known.append(float(log_p[0].max()))
    return answer, known


def _is_embedded(model: Model) -> bool:
    return model.recipe is not None and model.recipe.is_embedded


def _job(of: CheckedSetup) -> Job:
    student, teacher = of.checkpoint("student"), of.checkpoint("teacher")
    return Job(of.setup, of.runtime, student, teacher, trains=False)


def _problems(of: CheckedSetup, count: int) -> list[str]:
    """Texts of the first problems of the setup's first benchmark."""
    benchmark, run = next(iter(of.setup.evaluation.benchmarks.items()))
    problems = load_benchmark(benchmark, of.data_dir, run)[:count]
    return [problem.text for problem in problems]


# --- answers that end ---
#
# Student and teacher stop with different ids, which a setup names. With a wrong one the teacher
# never stops in the eyes of the sweep: its targets teach the student to go on, and responses grow
# until all are cut (ms-swift, issue 9526). A student whose id is missing is cut from the first step
# on. Losses stay finite meanwhile.


def endings(of: CheckedSetup) -> Found:
    """Check how many answers end with the pair's stop tokens.

    UserError if too few do: of the teacher fewer than the bound, of the student none. Random
    weights, and models that cannot be tried here, say nothing. The process may hold some of a GPU's
    memory afterwards.
    """
    setup = of.setup
    recipe = setup.teacher.recipe
    if recipe is not None and recipe.is_embedded and not recipe.updates:
        return Found("skipped", "not tried: the teacher's weights are random")
    untried = _why_untried(of, on_gpu=True)
    if untried is not None:
        return untried
    from orchestrator.data.prompts import render

    tokenizer = of.tokenizer("teacher")
    prompts = [render(text, setup.prompt, tokenizer) for text in _problems(of, SAMPLED)]
    job = _job(of)
    ended = share_that_ends(job, prompts, "teacher")
    limit = _limit(setup)
    if ended < LEAST_SHARE:
        raise UserError(
            f"{of.name}.teacher.eos: {setup.teacher.eos}: expected the id with which the teacher "
            f"stops: {ended:.0%} of its answers end within {limit:,} tokens, at least "
            f"{LEAST_SHARE:.0%} should"
        )
    words = f"{ended:.0%} of the teacher's answers end within {limit:,} tokens"
    if setup.student.recipe is not None and not setup.student.recipe.updates:
        return Found("ok", words)
    ended = share_that_ends(job, prompts, "student")
    if not ended:  # a weak student may ramble, but not always
        raise UserError(
            f"{of.name}.student.eos: {setup.student.eos}: expected the ids with which the student "
            f"stops: none of its {len(prompts)} answers ends within {limit:,} tokens"
        )
    return Found("ok", f"{words}, {ended:.0%} of the untrained student's")


def share_that_ends(job: Job, prompts: Sequence[tuple[int, ...]], owner: Owner) -> float:
    """Share of a model's samples at T = 1, one for each prompt, that end before the limit."""
    from orchestrator.engines.torch.engine import TorchEngine
    from orchestrator.policy.randomness import Purpose, SequenceKey
    from orchestrator.policy.spec import Student
    from orchestrator.rollouts import Request

    requests: list[Request] = []
    for index, ids in enumerate(prompts):
        requests.append(Request(ids, SequenceKey(Purpose.CONTINUATION, 0, 0, index, 0)))
    engine = TorchEngine(job)
    answering = engine.sampler(owner)
    answering.start(teacher=False)
    cut = 0
    for part in answering.sample(requests, Student(), Limits(_limit(job.setup))):
        cut += int(part.truncated_B.sum())
    engine.close()
    return 1 - cut / len(requests)


def _limit(setup: Setup) -> int:
    return min(setup.training.max_response_tokens, LONGEST)
