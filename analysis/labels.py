"""Names for people: methods by their short labels, benchmarks and setups by their titles.

Methods and benchmarks that come with the program are named in their own rows,
`experiment.methods.METHODS` and `data.benchmarks.BENCHMARKS`. Names unknown there are shown
verbatim, so a benchmark that only an experiment knows needs no entry to appear in a table.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from orchestrator.config import BenchmarkRun, Setup
from orchestrator.data.benchmarks import BENCHMARKS
from orchestrator.experiment.methods import BASE, METHODS, method_key, method_label, method_title

__all__ = ["BASE", "method_key", "method_label", "method_title"]

AVERAGE = "avg"

AVERAGE_LABEL = "Avg"

SETUPS: Mapping[str, str] = MappingProxyType(
    {
        "qwen3-1.7b": "Qwen3-1.7B-Base ← Qwen3-8B",
        "qwen3-0.6b": "Qwen3-0.6B-Base ← Qwen3-4B",
        "arithmetic": "Arithmetic",
    }
)


def _by_any_name(labels: Mapping[str, str]) -> dict[str, str]:
    """Folded label or key → key; where names collide a key wins over a label, and the first over
    later ones.
    """
    names = [(key, key) for key in labels] + [(label, key) for key, label in labels.items()]
    return {name.casefold(): key for name, key in reversed(names)}


_SETUP_KEYS = _by_any_name(SETUPS)


def _benchmark_labels() -> dict[str, str]:
    """Key → column label of the benchmarks that come with the program and of the average over a
    setup's benchmarks.
    """
    labels = {key: benchmark.label or key for key, benchmark in BENCHMARKS.items()}
    return labels | {AVERAGE: AVERAGE_LABEL}


def benchmark_label(key: str, run: BenchmarkRun | None = None) -> str:
    """The column label of a benchmark, or of the average (`avg`): the title its `run` gives, else
    the known one.
    """
    return (run.title if run is not None else None) or _benchmark_labels().get(key, key)


def setup_title(key: str, setups: Mapping[str, Setup] | None = None) -> str:
    """The heading over the columns of a setup: its own title where `setups` has one, else that of a
    shipped setup.

    The key follows a title that several setups share.
    """
    own = setups[key].title if setups is not None and key in setups else ""
    if own and setups is not None and sum(setup.title == own for setup in setups.values()) > 1:
        return f"{own} ({key})"
    return own or SETUPS.get(key, key)


def benchmark_key(name: str) -> str:
    """The key of a benchmark given as key or label, in any case; an unknown name is its own key."""
    return _by_any_name(_benchmark_labels()).get(name.casefold(), name)


def setup_key(name: str) -> str:
    """The key of a setup given as key or title, in any case; an unknown name is its own key."""
    return _SETUP_KEYS.get(name.casefold(), name)


def order_methods(methods: Iterable[str]) -> list[str]:
    """Distinct methods: those of the paper in its order, then unknown ones as given, then the
    untrained student.
    """
    ranks = {method: rank for rank, method in enumerate(METHODS)} | {BASE: len(METHODS) + 1}
    return sorted(dict.fromkeys(methods), key=lambda method: ranks.get(method, len(METHODS)))
