"""The process of one rank, a child of the training process (`liveness.children`).

The first call makes the rank from its number, the number of all ranks, and the folder where they
meet. Each later call is a function of `Rank` with its arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orchestrator.liveness.children import Parent, serve
from orchestrator.start_up import quick_imports


def _open(call: tuple[int, int, str], parent: Parent) -> Callable[[Any], Any]:
    with quick_imports():
        from orchestrator.engines.verl.rank import Rank

    rank = Rank(*call)

    def answer(call: tuple[Callable[..., Any], tuple[Any, ...]]) -> Any:
        method, arguments = call
        return method(rank, *arguments)

    return answer


if __name__ == "__main__":
    serve(_open)
