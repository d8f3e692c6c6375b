"""Training rollouts token by token, in a file for some of the steps.

`samples/step_000019.jsonl.gz` holds the first `runtime.rollout_texts` rollouts of training step 19,
a row each. Units write such a file at their first step and at the last step before each checkpoint.
`state.json` vouches for it as for other documents.
"""

from __future__ import annotations

from dataclasses import dataclass, field

FOLDER = "samples"


@dataclass(frozen=True)
class RolloutSample:
    """One rollout; each list has one value per token, and logarithms are in nats.

    `ids` are the response, from which it can be replayed: several ids can have one text.
    `prompt` is the text that the model read, and `index` the number of that prompt in the training
    data. `tokens` are texts that together make the response with its end. The text of a letter that
    spans several tokens is at its last token. `student` is log p and `behavior` log μ of the
    emitted token.

    If decoding used the teacher, `survived` says whether the token is the student's draft and not a
    replacement, and `teacher` is log q; both are None otherwise. `measured` has the measurements of
    the behavior's law by column of `metrics.jsonl`: β of the trust region, the probability
    `acceptance` that a draft survives, KL(μ‖p), `replaced` of SKD.
    """

    index: int
    sample: int
    prompt: str
    gold: str | None
    reward: float | None
    truncated: bool
    ids: list[int]
    tokens: list[str]
    student: list[float]
    behavior: list[float]
    teacher: list[float] | None = None
    survived: list[bool] | None = None
    measured: dict[str, list[float]] = field(default_factory=dict)


def samples_name(step: int) -> str:
    """The file of a step below the run directory: `samples/step_000019.jsonl.gz`."""
    return f"{FOLDER}/step_{step:06d}.jsonl.gz"
