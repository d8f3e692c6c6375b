"""Resources of a trial: one placement group, whose bundle 0 is the trial itself.

`inline` has no other bundle, and so all GPUs of the trial. `colocated` puts rollout and teacher in one actor and the
learner in another on the same bundle, with at most one GPU: Ray gives actors that ask for a GPU or more GPUs of their
own. `split` gives each role a bundle of its own, with its own GPUs where it has any. An evaluator has one bundle.
"""

from __future__ import annotations

from orchestrator.config import Placement, RoleName
from orchestrator.engines.memory import Gpus

Groups = tuple[tuple[RoleName, ...], ...]  # roles that share an actor

COLOCATED: Groups = (("rollout", "teacher"), ("learner",))
SPLIT: Groups = (("rollout",), ("teacher",), ("learner",))


def bundles(placement: Placement) -> list[dict[str, float]]:
    """CPUs and GPUs of each bundle; the trial's cores are shared out evenly."""
    count = {"inline": 1, "colocated": 2, "split": 1 + len(SPLIT)}[placement.mode]
    shares = [{"CPU": placement.cpus / count} for _ in range(count)]
    if placement.mode == "split":
        for bundle, (role,) in zip(shares[1:], SPLIT, strict=True):
            if placement.gpus_of(role):
                bundle["GPU"] = placement.gpus_of(role)
    elif placement.gpus:
        shares[-1]["GPU"] = placement.gpus
    return shares


def evaluator_bundles(placement: Placement) -> list[dict[str, float]]:
    """CPUs and GPUs of an evaluator, in one bundle."""
    return bundles(placement.of_evaluator)


def ranks(placement: Placement, role: RoleName) -> int:
    """Over how many processes a role can shard a model: one for each GPU that it has, else for each core.

    Of a core that it shares with others it has a part.
    """
    if placement.gpus:
        return Gpus.of(placement, role).count
    sharing = len(COLOCATED) if placement.mode == "colocated" else 1
    return max(1, int(bundles(placement)[-1]["CPU"] / sharing))
