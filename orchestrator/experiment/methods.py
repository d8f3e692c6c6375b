"""The methods, one row each. A row defines its method completely, and others treat all rows alike.

The first seven are the paper's, in the order of its main table; rivals and controls follow, which
`docs/methods.md` describes with their sources. `docs/add-a-method.md` adds another one.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from orchestrator.config import Setup, Training
from orchestrator.engines import catalog
from orchestrator.errors import did_you_mean, one_of, refuse
from orchestrator.experiment.schedules import (
    annealed,
    annealed_temperature,
    annealed_veto,
    growing_limit,
)
from orchestrator.policy.spec import (
    BatchBudget,
    Behavior,
    Bridge,
    FallingWithDiscrepancy,
    ForwardKL,
    Fusion,
    JensenShannon,
    Mixture,
    Objective,
    Proximal,
    ReverseKL,
    SampledToken,
    Student,
    TeacherInjection,
    TeacherKeeps,
    TeacherPrefers,
    TeacherSequences,
    TeacherUncertain,
    Tempered,
    Term,
    TrustRegion,
)
from orchestrator.rules import MOST, Count, Number, Positive, entry

# All but the released estimator, which estimates the reverse KL alone.
DIVERGENCES = ("renormalized", "tail", "truncated", "full")
VETO_OBJECTIVES = ("renormalized", "surrogate", "truncated", "full")

Knobs = Mapping[str, Any]  # name → value, of one trial
Grid = Mapping[str, Sequence[Any]]  # name → values, of an experiment


class Ceiling(NamedTuple):
    """The largest value that a knob can have in a setup, and what it is there."""

    of: Callable[[Setup], int]
    words: str


# Each linear layer has the hidden size on one side, so no change of its weights has a higher rank.
HIDDEN = Ceiling(lambda setup: setup.student.shape.hidden, "the hidden size of the student")
IDS = Ceiling(lambda setup: setup.vocabulary.valid, "the ids of the vocabulary")
RESPONSE = Ceiling(lambda setup: setup.training.max_response_tokens, "training.max_response_tokens")


@dataclass(frozen=True)
class Knob:
    """One hyperparameter of a method; `type` and `ceiling` say which values it can have."""

    meaning: str
    type: Any
    symbol: str = ""  # in figures, as mathtext
    unit: str = ""
    ceiling: Ceiling | None = None

    def describe(self) -> str:
        """`a whole number ≥ 1`."""
        return entry(self.type).describe()


def _number(meaning: str, symbol: str = "", unit: str = "", **limits: Any) -> Knob:
    """A knob within limits by pydantic's names; without an upper one MOST is the largest value."""
    limits = limits if "lt" in limits else {"le": MOST, **limits}
    return Knob(meaning, Annotated[Number, Field(**limits)], symbol, unit)


def _steps(meaning: str, symbol: str = "$K$") -> Knob:
    return Knob(meaning, Count, symbol, unit="steps")


OF_ADAPTERS = ("rank", "lr")  # knobs of a supervised stage, in the order of its label


def _with(behavior: Callable[[Any], Behavior], amount: float) -> Behavior:
    """A behavior with so much of the teacher: ε, a share or tokens; the student itself for 0."""
    return behavior(amount) if amount > 0 else Student()


def tempered(tau: float) -> Behavior:
    """The student at temperature τ."""
    return Tempered(tau) if tau != 1 else Student()


# --- rows ---


def _student(knobs: Knobs, step: int) -> Behavior:
    return Student()


def _plain(knobs: Knobs, training: Training, step: int, steps: int) -> Objective:
    return Objective(training.objective)


def _veto(knobs: Knobs, training: Training, step: int, steps: int) -> Objective:
    return Objective(training.objective, Bridge(annealed_veto(knobs["beta_start"], steps, step)))


def _of_terms(*terms: Callable[[Knobs], Term]) -> Callable[[Knobs, Training, int, int], Objective]:
    """The training's objective with `terms` in place of the reverse KL at every token."""

    def objective(knobs: Knobs, training: Training, step: int, steps: int) -> Objective:
        return Objective(training.objective, terms=tuple(term(knobs) for term in terms))

    return objective


def _likelihood(knobs: Knobs, training: Training, step: int, steps: int) -> Objective:
    return Objective("nll")


def _full_limit(knobs: Knobs, step: int, longest: int) -> int:
    return longest


@dataclass(frozen=True)
class Method:
    """A method of on-policy distillation: one row of METHODS.

    `title` is its name in its paper, or a name of our own with "after" for a variant of its source;
    `short` is its name in every table, list, figure and W&B run. `knobs` are its hyperparameters
    (Appendix A.2). `behavior` is the policy that samples the rollouts of optimizer step k ≥ 0,
    given the knobs. `objective` is the loss of step k of N, given knobs, training, k and N.
    `response_limit` are the tokens after which the rollouts of step k are cut, given knobs, k and
    the setup's limit. `updates_before` is the number of supervised updates before step 0;
    `adapters` are the rank and the rate of these updates if they train low-rank adapters, which the
    stage merges into its checkpoints. `objectives` are those of a training that it can change;
    without any, it takes all. `axis` is the knob along the horizontal axis of its figure: the
    paper's; without one, the knob with most values. `fades` is the knob with the number of steps
    after which the method is vanilla; None if it never is.
    """

    title: str
    short: str
    knobs: Mapping[str, Knob] = field(default_factory=dict)
    behavior: Callable[[Knobs, int], Behavior] = _student
    objective: Callable[[Knobs, Training, int, int], Objective] = _plain
    response_limit: Callable[[Knobs, int, int], int] = _full_limit
    updates_before: Callable[[Knobs], int] | None = None
    adapters: Callable[[Knobs], Knobs] | None = None
    objectives: Sequence[str] = ()
    axis: str | None = None
    fades: str | None = None

    @property
    def cuts_responses(self) -> bool:
        """Whether its responses have another limit than the setup's, at some step."""
        return self.response_limit is not _full_limit

    @property
    def budget(self) -> str | None:
        """The knob that holds a KL budget in nats; None for a method without one."""
        return next((name for name, knob in self.knobs.items() if knob.unit == "nats"), None)


METHODS: dict[str, Method] = {
    "trust_region": Method(
        "Trust-Region behavior Blending",
        "TRB",
        {
            "epsilon0": _number(
                "KL budget of the first step, in nats.", r"$\varepsilon_0$", "nats", ge=0
            ),
            "K": _steps("Steps over which the budget falls linearly to zero."),
        },
        behavior=lambda knobs, step: _with(
            TrustRegion, annealed(knobs["epsilon0"], knobs["K"], step)
        ),
        axis="K",
        fades="K",
    ),
    "vanilla": Method("Vanilla OPD", "Vanilla"),
    "veto": Method(
        "Veto",
        "Veto",
        {
            "beta_start": _number(
                "Weight of log p in Veto's target at the first step; it falls to zero over the run.",
                r"$\beta_0$",
                ge=0,
                lt=1,
            ),
        },
        objective=_veto,
        objectives=VETO_OBJECTIVES,
    ),
    "skd": Method(
        "Interleaved teacher injection (SKD)",
        "SKD",
        {
            "K": Knob(
                "A drafted token outside the teacher's top K is replaced.",
                Count,
                "$K$",
                ceiling=IDS,
            ),
            "tau_T": _number(
                "Temperature at which the teacher samples the replacement.", r"$\tau_T$", gt=0
            ),
        },
        behavior=lambda knobs, step: TeacherInjection(knobs["K"], knobs["tau_T"]),
        axis="K",
    ),
    "temperature_warmup": Method(
        "Temperature warmup",
        "Temperature",
        {
            "tau0": _number("Sampling temperature of the first step.", r"$\tau_0$", gt=0),
            "E": _steps("Steps over which the temperature goes to 1.", "$E$"),
        },
        behavior=lambda knobs, step: tempered(
            annealed_temperature(knobs["tau0"], knobs["E"], step)
        ),
        fades="E",
    ),
    "sft_warmup": Method(
        "SFT warmup",
        "SFT warmup",
        {"K": _steps("Supervised updates before distillation, one of training.sft.checkpoints.")},
        updates_before=lambda knobs: knobs["K"],
    ),
    "fixed_epsilon": Method(
        "Fixed-ε blending",
        "Fixed ε",
        {"epsilon": _number("KL budget of every step, in nats.", r"$\varepsilon$", "nats", ge=0)},
        behavior=lambda knobs, step: _with(TrustRegion, knobs["epsilon"]),
    ),
    "logit_fusion": Method(
        "Logit fusion",
        "Logit fusion",
        {
            "alpha0": _number(
                "Weight of the teacher's logits at the first step.", r"$\alpha_0$", ge=0, le=1
            ),
            "K": _steps("Steps over which the weight falls linearly to zero."),
        },
        behavior=lambda knobs, step: _with(Fusion, annealed(knobs["alpha0"], knobs["K"], step)),
        axis="K",
        fades="K",
    ),
    "batch_budget": Method(
        "Control: one KL budget for the whole batch (constant β)",
        "Batch budget",
        {
            "epsilon0": _number(
                "Mean KL(μ‖p) of the tokens of the first step, in nats.",
                r"$\varepsilon_0$",
                "nats",
                ge=0,
            ),
            "K": _steps("Steps over which the budget falls linearly to zero."),
        },
        behavior=lambda knobs, step: _with(
            BatchBudget, annealed(knobs["epsilon0"], knobs["K"], step)
        ),
        axis="K",
        fades="K",
    ),
    "teacher_mixture": Method(
        "Teacher-mixed sampling",
        "Mixture",
        {
            "w0": _number(
                "Share of the teacher in every token's law at the first step.", "$w_0$", ge=0, lt=1
            ),
            "K": _steps("Steps over which the share falls linearly to zero."),
        },
        behavior=lambda knobs, step: _with(Mixture, annealed(knobs["w0"], knobs["K"], step)),
        axis="K",
        fades="K",
    ),
    "gkd": Method(
        "Generalized knowledge distillation (GKD)",
        "GKD",
        {
            "teacher_share": _number(
                "Share of responses that the teacher gives.", r"$1-\lambda$", ge=0, le=1
            ),
            "beta": _number("β of the Jensen–Shannon divergence.", r"$\beta$", gt=0, lt=1),
        },
        behavior=lambda knobs, step: _with(TeacherSequences, knobs["teacher_share"]),
        objective=_of_terms(lambda knobs: Term(JensenShannon(knobs["beta"]))),
        objectives=DIVERGENCES,
    ),
    "top_d": Method(
        "Proximal target, after TOP-D",
        "Proximal target",
        {"alpha": _number("Share of the teacher in the target.", r"$\alpha$", gt=0, le=1)},
        objective=lambda knobs, training, step, steps: Objective(
            training.objective, Proximal(knobs["alpha"])
        ),
        objectives=DIVERGENCES,
    ),
    "tr_opd": Method(
        "Token-wise reverse or forward KL, after TrOPD",
        "After TrOPD",
        objective=_of_terms(
            lambda knobs: Term(ReverseKL(), TeacherKeeps()),
            lambda knobs: Term(ForwardKL(), TeacherKeeps(inverted=True)),
        ),
        objectives=DIVERGENCES,
    ),
    "aopd": Method(
        "Asymmetric reverse or forward KL, after AOPD",
        "After AOPD",
        objective=_of_terms(
            lambda knobs: Term(ReverseKL(), TeacherPrefers()),
            lambda knobs: Term(ForwardKL(), TeacherPrefers(inverted=True)),
        ),
        objectives=DIVERGENCES,
    ),
    "eopd": Method(
        "Entropy-aware on-policy distillation (EOPD)",
        "EOPD",
        {
            "entropy": _number(
                "Nats of the teacher's entropy above which the forward KL is added.",
                r"$\tau_H$",
                ge=0,
            ),
        },
        objective=_of_terms(
            lambda knobs: Term(ReverseKL()),
            lambda knobs: Term(ForwardKL(), TeacherUncertain(knobs["entropy"])),
        ),
        objectives=DIVERGENCES,
    ),
    "iw_opd": Method(
        "Importance-weighted on-policy distillation (IW-OPD)",
        "IW-OPD",
        {
            "most": _number(
                "Weight of a response's first token; it falls to 1 with the discrepancy to the teacher so far.",
                r"$w_{\max}$",
                ge=1,
            ),
        },
        objective=_of_terms(lambda knobs: Term(ReverseKL(), FallingWithDiscrepancy(knobs["most"]))),
    ),
    "forward_kl": Method(
        "Forward KL on student rollouts",
        "Forward KL",
        objective=_of_terms(lambda knobs: Term(ForwardKL())),
        objectives=DIVERGENCES,
    ),
    "sampled_token": Method(
        "Sampled-token policy gradient (k1)",
        "Sampled token",
        {"clip": _number("Largest advantage |log q − log p| of a token, in nats.", "$c$", gt=0)},
        objective=_of_terms(lambda knobs: Term(SampledToken(knobs["clip"]))),
    ),
    "simple_opd": Method(
        "LoRA warmup, then OPD (Simple-OPD)",
        "Simple-OPD",
        {
            "K": _steps("Updates of the adapters before distillation, as those of sft_warmup."),
            "rank": Knob(
                "Rank of the adapters; their α is the same.", Count, "$r$", ceiling=HIDDEN
            ),
            "lr": Knob("Learning rate of the adapters.", Positive, r"$\eta$"),
        },
        updates_before=lambda knobs: knobs["K"],
        adapters=lambda knobs: {name: knobs[name] for name in OF_ADAPTERS},
        axis="K",
    ),
    "prefix_horizon": Method(
        "Prefix distillation",
        "Prefix",
        {
            "tokens": Knob(
                "Tokens after which training responses are cut.", Count, "$h$", ceiling=RESPONSE
            )
        },
        response_limit=lambda knobs, step, longest: knobs["tokens"],
    ),
    "growing_horizon": Method(
        "Growing horizon",
        "Growing",
        {
            "tokens": Knob(
                "Tokens after which responses of the first step are cut.",
                Count,
                "$h_0$",
                ceiling=RESPONSE,
            ),
            "K": _steps("Steps over which the limit grows linearly to the setup's."),
        },
        response_limit=lambda knobs, step, longest: growing_limit(
            knobs["tokens"], knobs["K"], step, longest
        ),
        axis="K",
        fades="K",
    ),
    "sft_only": Method(
        "Control: SFT on teacher responses",
        "SFT only",
        behavior=lambda knobs, step: Fusion(1.0),
        objective=_likelihood,
    ),
}
REFERENCE = "vanilla"  # the baseline of every comparison
PROPOSED = "trust_region"  # the paper's own method
BASE = "base"  # the untrained student: a row of the tables, no method that an experiment lists
BASE_LABEL = "Untrained student"


def behavior_at(method: str | None, knobs: Knobs, step: int) -> Behavior:
    """The behavior policy of optimizer step k ≥ 0; the student's own policy without a method."""
    return METHODS[method].behavior(knobs, step) if method else Student()


def response_limit(method: str | None, knobs: Knobs, step: int, longest: int) -> int:
    """Tokens after which rollouts of optimizer step k ≥ 0 are cut; `longest` is the setup's limit."""
    return METHODS[method].response_limit(knobs, step, longest) if method else longest


def needs_teacher(method: str | None, knobs: Knobs, step: int) -> bool:
    """Whether optimizer step k ≥ 0 of a trial samples from a law of student and teacher."""
    return behavior_at(method, knobs, step).needs_teacher


def supervised_updates(method: str | None, knobs: Knobs) -> int | None:
    """Supervised updates before step 0; None for a trial that starts from the untrained student."""
    updates = METHODS[method].updates_before if method else None
    return None if updates is None else updates(knobs)


def adapters(method: str | None, knobs: Knobs) -> dict[str, Any]:
    """Rank and rate of the adapters of a method's supervised stage; empty for all weights."""
    of_stage = METHODS[method].adapters if method else None
    return {} if of_stage is None else dict(of_stage(knobs))


def check_grid(method: str, grid: Grid, name: str, setup: Setup) -> None:
    """Raise UserError if a method, or a value of its grid, does not suit a setup of that name."""
    row, training = METHODS[method], setup.training
    if row.objectives:
        key = f"training.objective (with method {method})"
        one_of(key, training.objective, row.objectives)
    if row.adapters is not None:
        key = f"engine.trainer (with method {method})"
        one_of(key, setup.engine.trainer, catalog.adapting())
    for knob, values in grid.items():
        ceiling = row.knobs[knob].ceiling
        for value in values:
            if ceiling is not None and value > ceiling.of(setup):
                right = f"≤ {ceiling.of(setup)}, {ceiling.words} of {name}"
                raise refuse(f"methods.{method}.{knob}", value, right)
    if row.updates_before is not None:
        for k in grid["K"]:
            if k not in training.sft.checkpoints:
                right = f"one of training.sft.checkpoints {training.sft.checkpoints}"
                raise refuse(f"methods.{method}.K", k, right)


# --- names ---


def method_label(key: str) -> str:
    """The short label of a method; an unknown key is its own label."""
    if key == BASE:
        return BASE_LABEL
    return METHODS[key].short if key in METHODS else key


def method_title(key: str) -> str:
    """The name of a method as the paper prints it; an unknown key is its own name."""
    return METHODS[key].title if key in METHODS else method_label(key)


def method_key(name: str) -> str:
    """The key of a method by key, title or label, typed as `folded` allows.

    "After" may be left out: TrOPD finds After TrOPD. An unknown name is its own key.
    """
    typed = folded(name)
    for key in (*METHODS, BASE):
        if typed in (folded(key), folded(method_label(key)), folded(method_title(key))):
            return key
    return name


def known_method(where: str, name: str, known: Iterable[str]) -> str:
    """The key of a method by any of its names; UserError at `where` unless `known` contains it."""
    key, keys = method_key(name), list(known)
    if key in keys:
        return key
    labels = [method_label(key) for key in keys]
    near = did_you_mean(name, [*labels, *keys])
    raise refuse(where, name, f"one of {', '.join(labels)}{near}")


def null_overrides(chosen: str, known: Iterable[str]) -> list[str]:
    """Overrides that leave out the `known` methods except the `chosen`, such as `vanilla,TRB`.

    UserError unless all chosen methods are known.
    """
    methods = list(known)
    kept = {known_method("--methods", name.strip(), methods) for name in chosen.split(",")}
    return [f"methods.{method}=null" for method in methods if method not in kept]


@functools.lru_cache(maxsize=4096)  # a table's file names a method in each of its rows
def folded(name: str) -> str:
    """A name in any case, with blanks, `-` or `_`, and with ε written as eps or epsilon."""
    spelled = re.sub(r"ε|epsilon", "eps", name.strip().casefold())
    return re.sub(r"[\s_-]+", " ", spelled).removeprefix("after ")
