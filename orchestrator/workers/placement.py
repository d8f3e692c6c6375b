"""Resources of a trial: one placement group, whose bundle 0 is the trial itself.

`colocated` puts rollout and teacher in one actor and the learner in another on the same bundle; `split` gives each role
a bundle of its own. An evaluator has one bundle with all that a trial has.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from orchestrator.config import Placement

RoleName = Literal["rollout", "teacher", "learner"]
Groups = tuple[tuple[RoleName, ...], ...]  # roles that share an actor

COLOCATED: Groups = (("rollout", "teacher"), ("learner",))
SPLIT: Groups = (("rollout",), ("teacher",), ("learner",))


def bundles(placement: Placement) -> list[dict[str, float]]:
    """CPUs and GPUs of each bundle; the trial's cores are shared out evenly."""
    count = {"inline": 1, "colocated": 2, "split": 1 + len(SPLIT)}[placement.mode]
    shares = [{"CPU": placement.cpus / count} for _ in range(count)]
    if placement.gpus:
        shares[-1]["GPU"] = placement.gpus  # validation allows GPUs only inline and colocated
    return shares


def evaluator_bundles(placement: Placement) -> list[dict[str, float]]:
    """CPUs and GPUs of an evaluator, in one bundle."""
    return bundles(replace(placement, mode="inline"))


def shares_gpu(placement: Placement) -> bool:
    """Whether the roles of a trial work on the same GPU, one after the other."""
    return placement.gpus > 0 and placement.mode != "split"


def ranks(placement: Placement) -> int:
    """Over how many processes the one that trains can shard a model: one for each GPU that it has, else for each core.

    Of a core that it shares with others it has a part.
    """
    bundle = bundles(placement)[-1]
    sharing = len(COLOCATED) if placement.mode == "colocated" else 1
    return max(1, int(bundle.get("GPU", bundle["CPU"] / sharing)))
