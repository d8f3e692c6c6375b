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
        "derailing": "Derailing teacher",
    }
)


def _by_any_name(labels: Mapping[str, str]) -> dict[str, str]:
    """Label or key, casefolded → key."""
    keys: dict[str, str] = {}
    for key in labels:
        keys.setdefault(key.casefold(), key)
    # Where names collide, keys come before labels and earlier labels before later ones.
    for key, label in labels.items():
        keys.setdefault(label.casefold(), key)
    return keys


_SETUP_KEYS = _by_any_name(SETUPS)


def _benchmark_labels() -> dict[str, str]:
    """Key → column label of the shipped benchmarks and of the average."""
    labels = {AVERAGE: AVERAGE_LABEL}
    for key, benchmark in BENCHMARKS.items():
        labels[key] = benchmark.label or key
    return labels


def benchmark_label(key: str, run: BenchmarkRun | None = None) -> str:
    """The column label of a benchmark or the average: the title in its `run`, else the known one."""
    return (run.title if run is not None else None) or _benchmark_labels().get(key, key)


def setup_title(key: str, setups: Mapping[str, Setup] | None = None) -> str:
    """The heading over a setup's columns: its title in `setups`, else that of a shipped setup.

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
    """Distinct methods: the paper's in its order, unknown ones as given, the untrained student."""
    ranks = {method: rank for rank, method in enumerate(METHODS)} | {BASE: len(METHODS) + 1}
    return sorted(dict.fromkeys(methods), key=lambda method: ranks.get(method, len(METHODS)))
