"""Sources of the data files: repositories at fixed commits, conversions of their files, and `fetch`.

Conversions rename fields and turn numbers into text; problems and answers stay as published. The
declared sha256 decides: a conversion reproduces a file byte for byte or is refused. Every
conversion was checked against the files at these commits.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.data.benchmarks import BENCHMARKS
from orchestrator.data.files import file_sha256
from orchestrator.errors import UserError, refuse
from orchestrator.records.files import write_atomically

DataRow = dict[str, Any]
Conversion = Callable[[Sequence[bytes]], list[DataRow]]  # contents of files → rows


@dataclass(frozen=True)
class Upstream:
    """A file of a public repository at a commit."""

    repository: str
    commit: str
    path: str

    @property
    def place(self) -> str:
        """The file's path below a mirror of raw files."""
        return f"{self.repository}/{self.commit}/{self.path}"


@dataclass(frozen=True)
class Source:
    """The source of a data file.

    `file` is its path below the data folder. `convert` makes its rows from the contents of the
    `upstream` files, in their order. `licence` is the repository's own statement.
    """

    file: str
    sha256: str
    rows: int
    upstream: tuple[Upstream, ...]
    licence: str
    convert: Conversion


def to_bytes(rows: Sequence[DataRow]) -> bytes:
    """Rows as JSON Lines, as all data files are written."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode("utf-8")


QWEN_MATH = ("QwenLM/Qwen2.5-Math", "a45202bd16f1ec06f433442dc1152d0074773465")
OPD = ("thunlp/OPD", "0a443955152fcd76dd08570ee3a43d50e307c5d1")
GRADE_SCHOOL = ("openai/grade-school-math", "3101c7d5072418e28b9008a6636bde82a006892c")
OLYMPIAD_FILE = Upstream(*QWEN_MATH, "evaluation/data/olympiadbench/test.jsonl")
OLYMPIAD_FIELDS = ("is_multiple_answer", "answer_type", "unit", "error", "subfield")
PROSE_ANSWER = "olympiadbench/1965"  # the 674 edition leaves it out

# Rows of training files, by number. `math_left_out`, by subject, shares at least half of the 10-word
# shingles of an evaluated problem, repeats another one, or has an empty answer. `gsm8k_taken` are the
# 1,500 of 7,473 training problems that were selected.
_ROWS = json.loads(Path(__file__).with_name("training_rows.json").read_text(encoding="utf-8"))
MATH_LEFT_OUT, GSM8K_TAKEN = _ROWS["math_left_out"], frozenset(_ROWS["gsm8k_taken"])


def _lines(content: bytes) -> list[DataRow]:
    """Rows of a JSON Lines file."""
    return [json.loads(line) for line in content.decode("utf-8").splitlines() if line.strip()]


def _by_row(convert: Callable[[DataRow, int], DataRow]) -> Conversion:
    """A conversion of one file that makes a row of each row and its number, from 0."""
    return lambda files: [convert(row, number) for number, row in enumerate(_lines(files[0]))]


def _kept(row: DataRow, *names: str) -> DataRow:
    return {name: row[name] for name in names}


def _math500(row: DataRow, number: int) -> DataRow:
    kept = _kept(row, "problem", "answer", "solution", "subject", "level")
    return {"id": row["unique_id"], **kept, "source": "MATH500"}


def _gsm8k(row: DataRow, number: int, split: str = "test") -> DataRow:
    """A row of GSM8K, whose answers are whole solutions that end in `#### gold`."""
    return {
        "id": f"gsm8k/{split}/{number}",
        "problem": row["question"],
        "answer": row["answer"].rpartition("####")[2].strip(),
        "solution": row["answer"],
        "source": f"GSM8K {split}",
    }


def _gsm8k_train(files: Sequence[bytes]) -> list[DataRow]:
    rows = enumerate(_lines(files[0]))
    return [_gsm8k(row, number, "train") for number, row in rows if number in GSM8K_TAKEN]


def _contest(name: str, source: str, *kept: str) -> Conversion:
    """A conversion for a contest whose answers are numbers; fields `kept` stay as they are."""

    def convert(row: DataRow, number: int) -> DataRow:
        answer = {
            "id": f"{name}/{row['id']}",
            "problem": row["problem"],
            "answer": str(row["answer"]),
        }
        return {**answer, **_kept(row, *kept), "source": source}

    return _by_row(convert)


def _amc22_23(row: DataRow, number: int) -> DataRow:
    return {
        "id": f"amc22_23/{number}",
        "orig_id": row["id"],  # starts again with each contest
        "problem": row["question"],
        "answer": str(row["answer"]),
        "url": row["url"],
        "source": "aimo-validation-amc (83)",
    }


def _olympiadbench(row: DataRow, number: int) -> DataRow:
    return {
        "id": f"olympiadbench/{row['id']}",
        "problem": row["question"],
        "answer": row["final_answer"][0],
        **_kept(row, "final_answer", *OLYMPIAD_FIELDS, "context"),
        "source": "OlympiadBench/OE_TO_maths_en_COMP",
    }


def _olympiadbench_674(files: Sequence[bytes]) -> list[DataRow]:
    """The later edition: the 675 problems in order without one; some fields are the first's."""
    import pyarrow.parquet

    later_edition = pyarrow.parquet.read_table(io.BytesIO(files[0])).to_pylist()
    first_edition = [row for row in _by_row(_olympiadbench)(files[1:]) if row["id"] != PROSE_ANSWER]
    rows = []
    for later, first in zip(later_edition, first_edition, strict=True):
        problem = later["prompt"][0]["content"]
        rows.append({
            "id": first["id"],
            "problem": problem,
            "answer": later["reward_model"]["ground_truth"],
            "text_vs_675": "verbatim" if problem == first["problem"] else "T value filled in",
            "answer_675": first["answer"],
            **_kept(first, *OLYMPIAD_FIELDS),
            "source": "OlympiadBench/OE_TO_maths_en_COMP (674-row edition)",
        })  # fmt: skip
    return rows


def _math_train(files: Sequence[bytes]) -> list[DataRow]:
    """The training split of MATH without `MATH_LEFT_OUT`."""
    rows = []
    for row in json.loads(files[0]):
        split, subject, name = row["id"].split("/")  # as in `train/algebra/27.json`
        left_out = MATH_LEFT_OUT.get(subject, ())
        if split == "train" and int(name.removesuffix(".json")) not in left_out:
            head = {"id": f"math/{row['id']}", "problem": row["prompt"], "answer": row["answer"]}
            rows.append({**head, "source": "MATH train", "subject": subject, "level": row["level"]})
    return rows


def _benchmark(key: str, convert: Conversion, licence: str, *upstream: Upstream) -> Source:
    """The source of a benchmark's declared file."""
    declared = BENCHMARKS[key]
    assert declared.file is not None
    assert declared.sha256 is not None
    return Source(declared.file, declared.sha256, declared.problems, upstream, licence, convert)


SOURCES: dict[str, Source] = {
    "math500": _benchmark("math500", _by_row(_math500), "MIT", Upstream(
        "ZubinGou/math-evaluation-harness", "db77bc6bb2a17c90ed2d63e88ebd8c40a82858c5", "data/math_oai/test.jsonl")),
    "gsm8k": _benchmark("gsm8k", _by_row(_gsm8k), "MIT", Upstream(*GRADE_SCHOOL, "grade_school_math/data/test.jsonl")),
    "olympiadbench": _benchmark("olympiadbench", _by_row(_olympiadbench), "MIT", OLYMPIAD_FILE),
    "olympiadbench_674": _benchmark(
        "olympiadbench_674", _olympiadbench_674, "none stated; upstream OpenBMB/OlympiadBench MIT",
        Upstream(*OPD, "scripts/val/data/Olympiad-Bench/test.parquet"), OLYMPIAD_FILE),
    "amc23": _benchmark("amc23", _contest("amc23", "AMC12 2023 (40)", "url"), "MIT",
                        Upstream(*QWEN_MATH, "evaluation/data/amc23/test.jsonl")),
    "amc22_23": _benchmark("amc22_23", _by_row(_amc22_23), "Apache-2.0", Upstream(
        "PRIME-RL/PRIME", "18ad596f08d487bb546d80d738d99ec697bd2e75",
        "eval/data/AI-MO/aimo-validation-amc/aimo-validation-amc.jsonl")),
    "aime24": _benchmark("aime24", _contest("aime24", "AIME 2024 I+II", "solution", "url"), "MIT",
                         Upstream(*QWEN_MATH, "evaluation/data/aime24/test.jsonl")),
    "aime25": _benchmark("aime25", _contest("aime25", "AIME 2025 I+II"), "MIT", Upstream(
        "RUCBM/G-OPD", "37371a4c31ad7947746200d234161769191f4748", "data/aime25/test.jsonl")),
    "math_train": Source(
        "train/math_train.jsonl", "c8224ad363656d57f4c549c503d1da7d87b1a9593d94e7574c1c07f139fa63f0", 7437,
        (Upstream(*OPD, "datasets/test_data/MATH/train.json"),), "none stated; upstream hendrycks/math MIT",
        _math_train),
    "gsm8k_train": Source(
        "train/gsm8k_train_sample.jsonl", "7e4d6db0de26b5848925585705a3dbbd18584b47365b245d9a17af702fb9773a", 1500,
        (Upstream(*GRADE_SCHOOL, "grade_school_math/data/train.jsonl"),), "MIT", _gsm8k_train),
}  # fmt: skip


# --- fetching: a file has the declared content, or is not written at all ---


RAW_FILES = "https://raw.githubusercontent.com"
TIMEOUT_S = 60.0


def fetch(folder: Path, keys: Iterable[str], mirror: str | None = None) -> Iterator[str]:
    """Put the data files of these `keys` of SOURCES below `folder`, and yield a line for each.

    `mirror` (a URL or a local folder) holds raw files as `owner/name/commit/path`; the default is
    TRB_DATA_MIRROR, else RAW_FILES. Existing files are never replaced. UserError at the first file
    that is unavailable or has other content than declared; nothing of it is written.
    """
    mirror = mirror or os.environ.get("TRB_DATA_MIRROR") or RAW_FILES
    read: dict[Upstream, bytes] = {}
    for key in keys:
        source = SOURCES[key]
        path = folder / source.file
        if path.is_file():
            if file_sha256(path) != source.sha256:
                raise UserError(
                    f"{path}: another file is there already: "
                    "expected another folder, or this file moved away"
                )
            yield f"{path}: there already"
            continue
        for upstream in source.upstream:
            if upstream not in read:
                read[upstream] = _read(mirror, upstream)
        content = _converted(key, source, [read[upstream] for upstream in source.upstream])
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content, shared=True)
        first = source.upstream[0]
        where = f"{first.repository} at {first.commit[:12]} (licence: {source.licence})"
        yield f"{path}: {source.rows:,} rows of {where}, sha256 as declared"


def _read(mirror: str, upstream: Upstream) -> bytes:
    if "://" not in mirror:
        try:
            return (Path(mirror) / upstream.place).read_bytes()
        except OSError as error:
            key = "--from or TRB_DATA_MIRROR"
            raise refuse(
                key, mirror, f"a folder with {upstream.place} ({error.strerror})"
            ) from None
    import httpx

    url = f"{mirror.rstrip('/')}/{upstream.place}"
    try:
        answer = httpx.get(url, timeout=TIMEOUT_S, follow_redirects=True)
        return answer.raise_for_status().content
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        elsewhere = (
            "`trb data fetch FOLDER` where a network is, then data_dir=FOLDER; "
            "or TRB_DATA_MIRROR=URL"
        )
        raise UserError(f"{url}: cannot be had ({reason}); {elsewhere}") from None


def _converted(key: str, source: Source, files: Sequence[bytes]) -> bytes:
    """Convert upstream files to the declared file; UserError that describes any other result."""
    try:
        rows = source.convert(files)
    except Exception as error:  # unexpected content can break a conversion anywhere
        came = f"{len(files[0]):,} bytes that are no rows as expected ({type(error).__name__})"
        raise UserError(f"{key}: {came}: expected what {source.upstream[0].place} has") from None
    content = to_bytes(rows)
    actual = hashlib.sha256(content).hexdigest()
    if actual != source.sha256:
        raise UserError(
            f"{key}: {len(rows):,} rows with sha256 {actual} came: "
            f"expected {source.rows:,} with {source.sha256}"
        )
    return content
