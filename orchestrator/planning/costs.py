"""Seconds of a training step and of an evaluation of a setup, from the rates of an engine on a GPU.

For n responses that are decoded together, with the `Lengths` of `planning.lengths` and the `Rates`
of `planning.rates`:

    rows             by `engines.budget`, in static batches of full length; in continuous ones
                     tokens of the pool ÷ context, at most the requests that run at once
    decode steps D   static: ⌈n ÷ rows⌉ × longest response of a batch
                     continuous: n × tokens ÷ rows
    statistics       values of the vocabulary × bytes that they move ÷ bandwidth
    decoding         max(D × kernel launches of a step,
                         (D × weights + KV of a token × n × reads) ÷ bandwidth + statistics,
                         2 × parameters × D × rows ÷ FLOP/s)
    blending         passes a token × (γ × student's decoding + teacher's decoding of γ positions),
                     with launches of their own, and the verdict's statistics. It gives the
                     teacher's scores as well. Tokens that the teacher writes itself take one pass
                     each. A batch that solves its β is sampled BATCH_PASSES times by a keyed engine.
    scoring          2 × parameters × n × (prompt + tokens) ÷ FLOP/s   (teacher), and statistics
    learning         6 × parameters × n × (prompt + tokens) ÷ FLOP/s   (student)
    other            weights to the sampler, the learner's state to the host and back, grading that
                     nothing hides, data; `Rates.start_s` for a unit

Steps that a method cuts before the setup's limit have the lengths of their own limit.

A role on G GPUs has G times their bandwidth and arithmetic. Decoding then waits for the all-reduces
of D steps besides (`rates.ALL_REDUCE_US`), scoring and learning keep a part of their speed
(`rates.SHARDED`). Roles with GPUs of their own still work one after the other: GPU-hours are all
GPUs of the trial × its time. An evaluator has one GPU at most.

The formulas are lower bounds: they count neither prefill nor loading. Evaluators' rates include their
sampling. Measurements of finished runs on the same engine replace the rates, phase by phase.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from orchestrator.config import Placement, Runtime, Setup
from orchestrator.engines.budget import Situation, TooSmall, budget, is_pooled, scores_beside
from orchestrator.engines.catalog import ENGINES, sampler_of
from orchestrator.engines.memory import (
    LONGEST_ROUND,
    ONE_GPU,
    STATE_BYTES,
    Decoder,
    Gpus,
    by_kernel,
    decoder,
    fitting_round,
    sequences_per_step,
)
from orchestrator.experiment.evaluation_protocol import held_out_prompts
from orchestrator.planning.lengths import LAWS, PROMPT_TOKENS, TRAINING_LENGTHS, Lengths
from orchestrator.planning.numbers import NOTHING, Range, Scenario
from orchestrator.planning.rates import (
    ALL_REDUCE_US,
    ALL_REDUCES_OF_A_LAYER,
    BESIDE_SAMPLING,
    CACHE_S,
    DATA_S,
    DEFAULT_GPU,
    GPUS,
    GRADE_S,
    JUDGED_BYTES,
    LAUNCH_LAYERS,
    LEARNING,
    RATES,
    SAMPLED_BYTES,
    SAMPLED_BYTES_IN_ONE,
    SCORED_BYTES,
    SCORED_BYTES_IN_FEW,
    SCORING,
    SHARDED,
    STATE_S,
    STATISTICS,
    WEIGHTS_BY_GPU_S,
    WEIGHTS_BY_HOST_S,
    WITHOUT_CHECKPOINTS,
    Gpu,
)
from orchestrator.planning.work import (
    BATCH_PASSES,
    SUPERVISED,
    StepWork,
    evaluation_generations,
)
from orchestrator.records.clock import BLENDED, PLAIN
from orchestrator.records.log import EVALUATE, LEARN, MEASURE, ROLLOUT, SCORE
from orchestrator.rules import RoleName

OTHER = "other"  # of a training step: work that keeps a trial's GPU waiting
PASSING = "passing on"  # of OTHER: weights to the sampler, the learner's state to the host and back
# The parts of OTHER; the first two are PASSING.
WEIGHTS, STATE, GRADE, DATA = "weights", "state", "grade", "data"
TRAINING_PHASES = (ROLLOUT, SCORE, LEARN, OTHER)
PHASES = (*TRAINING_PHASES, MEASURE, EVALUATE)  # MEASURE: on held-out prompts, by the trial
DECODING: Mapping[str, Situation] = {
    BLENDED: "blending",
    PLAIN: "decoding",
    SUPERVISED: "answering",
}


@dataclass(frozen=True)
class Design:
    """Parts of a step that are on; without arguments none that a runtime may switch.

    - `grade_beside`: grading runs beside scoring and learning.
    - `rows_by_draft`: a blended round has as many requests as its γ allows.
    - `weights_on_gpu`: weights reach the sampler without passing through the host.
    - `one_kernel`: the kernels of this program draw from the student's logits.
    - `few_passes`: they also compute the scorer's statistics.
    - `resident`: learner and KV cache stay on the GPU.
    - `checkpoint_free`: the learner keeps its activations.
    - `scores_beside`: finished rollouts are scored while others are decoded.
    """

    grade_beside: bool = False
    rows_by_draft: bool = False
    weights_on_gpu: bool = False
    one_kernel: bool = False
    few_passes: bool = False
    resident: bool = False
    checkpoint_free: bool = False
    scores_beside: bool = False


@dataclass(frozen=True, eq=False)
class SetupCosts:
    """Seconds of a setup on an `engine` and GPUs of the kind `gpu`, placed by `runtime.placement`.

    `lengths` are the measured ones, by benchmark and under TRAINING_LENGTHS. `factors` are measured
    ÷ planned seconds by phase; rollouts of BLENDED or PLAIN steps may have a factor of their own,
    and so may PASSING. Both are empty before any measurement. `sources` names the calibrations
    behind factors that no finished run measured.
    """

    setup: Setup
    runtime: Runtime
    engine: str
    gpu: Gpu = GPUS[DEFAULT_GPU]
    lengths: Mapping[str, Lengths] = field(default_factory=dict)
    factors: Mapping[str, Range] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    designed: Design | None = None  # None: as setup and runtime say
    # Costs that were worked out already: by work of a step, by benchmark, by placement.
    _steps: dict[StepWork, Mapping[str, Range]] = field(default_factory=dict, init=False)
    _responses: dict[str, Range] = field(default_factory=dict, init=False)
    _placed: dict[Placement, SetupCosts] = field(default_factory=dict, init=False)

    def on(self, placement: Placement) -> SetupCosts:
        """The same for trials with another placement, on GPUs of this kind or this share of one."""
        if placement == self.runtime.placement:
            return self
        if placement not in self._placed:
            runtime = replace(self.runtime, placement=placement)
            self._placed[placement] = replace(self, runtime=runtime)
        return self._placed[placement]

    def at(self, setup: Setup) -> SetupCosts:
        """The same for units that train with another setup of the same pair, at a point of axes."""
        return self if setup is self.setup else replace(self, setup=setup)

    # --- the costs of a unit ---

    @cached_property
    def evaluation(self) -> Range:
        """Seconds of one checkpoint's evaluation under the full protocol."""
        generations = evaluation_generations(self.setup)
        return Range.total(self.response(key) * count for key, count in generations.items())

    @cached_property
    def held_out_response(self) -> Range:
        """Seconds of a response to a held-out prompt: sampled alone, then read by both models."""
        responses = held_out_prompts(self.setup)
        if not responses:
            return NOTHING
        work, read = StepWork(PLAIN), self.student.parameters / self.teacher.parameters

        def planned(phase: str, rates: Scenario, lengths: Scenario) -> float:
            of_step = self.training_lengths(lengths)
            return self.phase_seconds(phase, work, responses, of_step, rates)

        sampled, scored = (
            self._measured(phase, PLAIN, partial(planned, phase)) for phase in (ROLLOUT, SCORE)
        )
        return (sampled + scored * (1 + read)) / responses

    @cached_property
    def start(self) -> Range:
        """Seconds until a unit works."""
        return RATES[self.engine].start_s

    def step(
        self,
        kind: str,
        limit: int | None = None,
        share: float = 0.0,
        solved: bool = False,
    ) -> Mapping[str, Range]:
        """Seconds of one training step by phase of training; its work as in `StepWork`."""
        work = StepWork(kind, limit, share, solved)
        if work not in self._steps:
            responses, seconds = sequences_per_step(self.setup.training), dict[str, Range]()

            def planned(phase: str, rates: Scenario, lengths: Scenario) -> float:
                of_step = self.training_lengths(lengths, limit)
                return self.phase_seconds(phase, work, responses, of_step, rates)

            for phase in (ROLLOUT, SCORE, LEARN):
                seconds[phase] = self._measured(phase, kind, partial(planned, phase))
            seconds[OTHER] = Range.total(self._others(work, seconds).values())
            self._steps[work] = seconds
        return self._steps[work]

    def step_parts(self, kind: str) -> dict[str, Range]:
        """Seconds of one training step by phase, with the parts of OTHER in its place."""
        seconds = dict(self.step(kind))
        del seconds[OTHER]
        return seconds | self._others(StepWork(kind), seconds)

    def _others(self, work: StepWork, seconds: Mapping[str, Range]) -> dict[str, Range]:
        """Seconds of the parts of OTHER in a step with these `seconds` by phase."""
        if OTHER in self.factors:
            assumed = replace(self, factors={})
            parts = assumed._others(work, assumed.step(*work))
            return {name: self.factors[OTHER] * part.mid for name, part in parts.items()}
        grading = GRADE_S * sequences_per_step(self.setup.training)
        if self.design.grade_beside:
            beside = seconds[SCORE] + seconds[LEARN]
            whole = grading
            grading = Range.of(lambda s: max(0.0, whole.at(s) - beside.at(s)))
        passing = WEIGHTS_BY_GPU_S if self.design.weights_on_gpu else WEIGHTS_BY_HOST_S
        moving = NOTHING
        if not self.design.resident:
            moving = STATE_S * (self.student.parameters * STATE_BYTES / 1e9)
            moving += CACHE_S if is_pooled(self.setup) else NOTHING
        parts = {
            WEIGHTS: passing * (self.student.weight_bytes / 1e9),
            STATE: moving,
            GRADE: grading,
            DATA: DATA_S,
        }
        if PASSING in self.factors:
            for name in (WEIGHTS, STATE):
                parts[name] = self.factors[PASSING] * parts[name].mid
        return parts

    @property
    def passing(self) -> Range:
        """Planned seconds of PASSING."""
        parts = replace(self, factors={}).step_parts(PLAIN)
        return parts[WEIGHTS] + parts[STATE]

    @cached_property
    def design(self) -> Design:
        """The parts of a step that are on."""
        if self.designed is not None:
            return self.designed
        setup, runtime, sampling = self.setup, self.runtime, self._gpus("rollout")
        learning = None
        with suppress(TooSmall):
            on = self._gpus("learner")
            learning = budget(setup, runtime, self.gpu.gib, "learning", on)
        pooled, alone = is_pooled(setup), sampling.count == 1
        by_handle = runtime.weights == "device" and not sampling.apart and alone
        return Design(
            grade_beside=runtime.grade_beside,
            rows_by_draft=True,
            weights_on_gpu=by_handle or not pooled,  # one process has both
            one_kernel=pooled and by_kernel(runtime, setup) and alone,
            few_passes=by_kernel(runtime, setup),
            resident=learning is not None and learning.resident,
            checkpoint_free=learning is not None and not learning.checkpointing,
            scores_beside=scores_beside(setup, runtime, runtime.placement),
        )

    def before(self) -> SetupCosts:
        """The same without all parts of a step that a runtime may switch."""
        runtime = replace(self.runtime, checkpointing=True, resident=False, logits_kernel="torch")
        return replace(
            self, runtime=runtime, designed=Design(weights_on_gpu=not is_pooled(self.setup))
        )

    def steps(self, works: Mapping[StepWork, int]) -> dict[str, Range]:
        """Seconds by phase of so many training steps of each work."""
        seconds: dict[str, Range] = dict.fromkeys(TRAINING_PHASES, NOTHING)
        for work, count in works.items():
            for phase, of_one in self.step(*work).items():
                seconds[phase] += of_one * count
        return seconds

    def response(self, benchmark: str) -> Range:
        """Seconds of one response to a benchmark, while all of them are sampled."""
        if benchmark not in self._responses:
            responses = evaluation_generations(self.setup)[benchmark]

            def planned(rates: Scenario, lengths: Scenario) -> float:
                of_benchmark = self.evaluation_lengths(benchmark, lengths)
                return self.evaluating_seconds(responses, of_benchmark, rates)

            self._responses[benchmark] = self._measured(EVALUATE, EVALUATE, planned) / responses
        return self._responses[benchmark]

    def _measured(
        self, phase: str, kind: str, planned: Callable[[Scenario, Scenario], float]
    ) -> Range:
        """Combine `planned` over the scenarios of rates and of lengths.

        Where the phase was measured, all scenarios have the middle rates times the measured factor,
        and still differ by their lengths.
        """
        factor = self.factors.get(phase)
        if phase == ROLLOUT:
            factor = self.factors.get(kind, factor)
        if factor is None:
            return Range.of(lambda scenario: planned(scenario, scenario))
        return factor * Range.of(lambda scenario: planned("mid", scenario))

    # --- lengths ---

    def training_lengths(self, scenario: Scenario, limit: int | None = None) -> Lengths:
        """Lengths of training responses under a `limit`; None takes the setup's."""
        limit = limit or self.setup.training.max_response_tokens
        return self._lengths_under(TRAINING_LENGTHS, limit, scenario)

    def evaluation_lengths(self, benchmark: str, scenario: Scenario) -> Lengths:
        """Lengths of the responses to a benchmark."""
        return self._lengths_under(benchmark, self.setup.evaluation.max_response_tokens, scenario)

    def tokens_under(self, limit: int | None) -> Range:
        """Tokens of a training response under a limit, the setup's for None, on average."""
        return Range.of(lambda scenario: self.training_lengths(scenario, limit).tokens)

    def evaluation_tokens(self, benchmark: str) -> Range:
        """Tokens of a response to a benchmark, on average."""
        return Range.of(lambda scenario: self.evaluation_lengths(benchmark, scenario).tokens)

    def _lengths_under(self, key: str, limit: int, scenario: Scenario) -> Lengths:
        if key in self.lengths:
            return self.lengths[key].under(limit)
        prompt = min(PROMPT_TOKENS, self.setup.training.max_prompt_tokens)
        return LAWS[scenario].under(limit, prompt)

    # --- the formulas above ---

    def phase_seconds(
        self, phase: str, work: StepWork, responses: int, lengths: Lengths, scenario: Scenario
    ) -> float:
        """Seconds of a phase of a training step with so many responses, at a scenario's rates."""
        if phase == ROLLOUT:
            return self._rollout_seconds(work, responses, lengths, scenario)
        tokens = responses * (lengths.prompt + lengths.tokens)
        if phase == LEARN:
            learned = LEARNING.at(scenario) * self._arithmetic("learner", scenario)
            left = WITHOUT_CHECKPOINTS.at(scenario) if self.design.checkpoint_free else 1.0
            return left * 6 * self.student.parameters * tokens / learned
        # Blended rollouts bring their scores, and the supervised stage needs none.
        if work.kind != PLAIN:
            return 0.0
        scored = SCORING.at(scenario) * self._arithmetic("teacher", scenario)
        seconds = 2 * self.teacher.parameters * tokens / scored
        moved = SCORED_BYTES_IN_FEW if self.design.few_passes else SCORED_BYTES
        gpus = self._arithmetic("teacher", scenario) / self.gpu.flops
        seconds += self._statistics(responses * lengths.tokens, moved, scenario) / gpus
        left = BESIDE_SAMPLING.at(scenario) if self.design.scores_beside else 1.0
        return left * seconds

    def _statistics(self, tokens: float, moved: float, scenario: Scenario) -> float:
        """Seconds of operations that move so many bytes of each value of the vocabulary."""
        values = tokens * self.setup.vocabulary.size
        return values * moved / (STATISTICS.at(scenario) * self.gpu.bytes_per_s)

    def evaluating_seconds(self, responses: int, lengths: Lengths, scenario: Scenario) -> float:
        """Seconds of an evaluator for so many responses, at a scenario's rates."""
        rows = self.rows(lengths, "evaluating")
        bandwidth = RATES[self.engine].evaluating.at(scenario) * self.gpu.bytes_per_s
        return self.decode_seconds(
            self.student,
            responses,
            rows,
            lengths,
            bandwidth,
            scenario,
            launch_ms=RATES[self.engine].launch_ms,
        )

    def _arithmetic(self, role: RoleName, scenario: Scenario) -> float:
        """FLOP/s of the GPUs of a role that scores or learns; one GPU reaches a share of it."""
        count = self._gpus(role).count
        return self.gpu.flops * count * (SHARDED.at(scenario) if count > 1 else 1.0)

    def _gpus(self, role: RoleName) -> Gpus:
        return Gpus.of(self.runtime.placement, role)

    def _rollout_seconds(
        self, work: StepWork, responses: int, lengths: Lengths, scenario: Scenario
    ) -> float:
        kind = work.kind
        sampling = sampler_of(self.engine, teacher_decodes=kind == BLENDED)
        if sampling != self.engine:  # an engine that cannot blend gives these steps to another one
            other = replace(self, engine=sampling)
            return other._rollout_seconds(work, responses, lengths, scenario)
        rates = RATES[self.engine]
        on = self._gpus("teacher" if kind == SUPERVISED else "rollout")
        if self.runtime.rollout_batch is None:
            # UserError if teacher or learner find no room on their GPUs.
            budget(self.setup, self.runtime, self.gpu.gib, "scoring", self._gpus("teacher"))
            budget(self.setup, self.runtime, self.gpu.gib, "learning", self._gpus("learner"))
        rows = self.rows(lengths, DECODING[kind], on)
        bandwidth = rates.decoding.at(scenario) * self.gpu.bytes_per_s
        decoding = partial(self.decode_seconds, gpus=on.count)
        given = (responses, rows, lengths, bandwidth, scenario)
        sampled = SAMPLED_BYTES_IN_ONE if self.design.one_kernel else SAMPLED_BYTES
        if kind != BLENDED:
            model = self.teacher if kind == SUPERVISED else self.student
            return decoding(model, *given, launch_ms=rates.launch_ms, moved=sampled)
        launch_ms = rates.blended_launch_ms
        rows = min(rows, self._rows_of_round(scenario))
        given = (responses, rows, lengths, bandwidth, scenario)
        # The student's drafts are of no use where the teacher writes the response.
        written = work.share
        passes = written + (1 - written) * rates.teacher_passes.at(scenario)
        drafted = max(1.0, rates.drafted.at(scenario))
        judged = written + (1 - written) * drafted * rates.teacher_passes.at(scenario)
        seconds = judged * decoding(self.student, *given, launch_ms=launch_ms, moved=sampled)
        positions = judged / passes
        teacher = decoding(self.teacher, *given, launch_ms=launch_ms, positions=positions)
        seconds += passes * teacher
        tokens = responses * lengths.tokens
        seconds += self._statistics(judged * tokens, JUDGED_BYTES, scenario)
        return seconds * (BATCH_PASSES if work.solved and ENGINES[self.engine].keyed else 1.0)

    def _rows_of_round(self, scenario: Scenario) -> int:
        """The requests of a blended round on a serving engine; no limit on others."""
        if not RATES[self.engine].continuous:
            return sys.maxsize
        drafted = LONGEST_ROUND
        if self.design.rows_by_draft:
            drafted = round(RATES[self.engine].drafted.at(scenario))
        return fitting_round(self.setup.vocabulary.size, drafted)

    def rows(self, lengths: Lengths, situation: Situation, on: Gpus = ONE_GPU) -> int:
        """How many responses are decoded at once; UserError if not even one of full length fits."""
        granted = budget(self.setup, self.runtime, self.gpu.gib, situation, on, lengths.limit)
        if not RATES[self.engine].continuous:
            return granted.requests
        return min(granted.requests, max(1, int(granted.kv_tokens / lengths.context)))

    def decode_seconds(
        self,
        model: Decoder,
        responses: int,
        rows: int,
        lengths: Lengths,
        bandwidth: float,
        scenario: Scenario,
        gpus: int = 1,
        launch_ms: Range = NOTHING,
        moved: float = 0.0,
        positions: float = 1.0,
    ) -> float:
        """Seconds of decoding `responses`, `rows` at a time, at `bandwidth` bytes/s of each GPU.

        A pass of so many `positions` of each row stands for a decode step. It `moved` bytes of each
        value of the vocabulary.
        """
        rates, rows = RATES[self.engine], min(rows, responses)
        if rates.continuous:
            steps = responses * lengths.tokens / rows
        else:
            steps = math.ceil(responses / rows) * lengths.longest(rows)
        cache_passes = rates.cache_passes + rates.head_passes.at(scenario) * model.head_groups
        cache_traffic = cache_passes * model.kv_bytes * responses * lengths.reads
        launches = steps * launch_ms.at(scenario) / 1000 * model.layers / LAUNCH_LAYERS
        reading = (steps * model.weight_bytes + cache_traffic) / (gpus * bandwidth)
        reading += self._statistics(steps * rows, moved, scenario)
        flops = gpus * SCORING.at(scenario) * self.gpu.flops
        arithmetic = 2 * model.parameters * steps * rows * positions / flops
        waits = ALL_REDUCES_OF_A_LAYER * model.layers * ALL_REDUCE_US.at(scenario) / 1e6
        return max(launches, reading, arithmetic) + (steps * waits if gpus > 1 else 0.0)

    @cached_property
    def student(self) -> Decoder:
        return decoder(self.setup.student, self.setup)

    @cached_property
    def teacher(self) -> Decoder:
        return decoder(self.setup.teacher, self.setup)
