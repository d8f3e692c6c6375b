"""The parent's end of a grading process, which starts at the first answer that needs it.

Three things bound the cost of an answer. The process keeps the deadline in a fork of its own that it
can kill (`worker`), and limits the memory, since an answer can exhaust the machine before its
deadline. Should the process itself be gone or silent, it is replaced before the next answer, which
therefore does not pay for the previous one.

Starting takes seconds, because of sympy. The deadline of the first answer starts only once the
worker has done its imports.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from orchestrator.liveness import pulse
from orchestrator.liveness.children import Child, ChildFailed, ChildLost

# Importing sympy on a loaded machine may take many seconds.
STARTUP_DEADLINE_S = 120.0
# The process says by itself that a deadline has passed; a machine without memory may be this late.
_LATE_S = 30.0

_WORKER_MODULE = "orchestrator.grading.worker"


class Slot:
    """A place for one grading process at a time, which outlives its processes. Not thread-safe."""

    def __init__(self) -> None:
        """Make an empty place, which the first request fills."""
        self.worker: Child | None = None

    def ask(
        self, request: dict[str, Any], deadline_s: float, cpu_s: float | None = None
    ) -> bool | None:
        """The process's verdict; None if it gave none within `deadline_s`.

        With `cpu_s` an answer also ends after as many seconds on a processor, however busy the
        machine is. Raises RuntimeError if no process can be started.
        """
        if self.worker is not None and not self.worker.alive():
            # It died between two answers, so this answer is not to blame.
            self.close()
        if self.worker is None:
            self.worker = _started()
        answered = False
        verdict = None
        try:
            limits = {"deadline_s": deadline_s, "cpu_s": cpu_s}
            verdict = self.worker.ask(request | limits, deadline_s + _LATE_S)
            answered = True
        except (ChildLost, ChildFailed):
            pulse.advance()  # an answer without a verdict is a piece of work as well
        finally:
            if not answered:
                # Also after an interrupt: the reply still to come would pass for the next answer's.
                self.close()
        return verdict

    def close(self) -> None:
        """End the process. A later request starts a fresh one."""
        if self.worker is not None:
            self.worker.end()
            self.worker = None


def _started() -> Child:
    """A worker that is ready. Raises RuntimeError if it does not come up."""
    # sympy orders some sets by hash; a fixed seed makes every grade repeatable. math_verify and
    # antlr warn about unparsable answers, which are a model's everyday output.
    environment = {"PYTHONHASHSEED": "0"}
    worker = Child(_WORKER_MODULE, "the grading worker", environment, subprocess.DEVNULL)
    try:
        worker.ask(None, STARTUP_DEADLINE_S)
    except (ChildLost, ChildFailed) as error:
        worker.end()
        raise RuntimeError(
            f"the grading worker did not start: {error}; try: "
            f"{sys.executable} -c 'import {_WORKER_MODULE}'"
        ) from None
    except BaseException:
        worker.end()
        raise
    return worker
