"""Texts of an evaluation's responses, in a file beside the file of their slice.

`problems_0-250_of_500.samples_0-4.texts.gz` has a row for each kept response, ordered by problem
and sample. As in the file of the slice, its last line names the slice and has the sha256 of the
rows. `writer.write_slice` writes the texts before the slice, so no slice lacks the texts that were
to be kept. A slice without such a file kept none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.records.files import (
    compressed,
    damaged,
    decompressed,
    parse_rows,
    read_bytes,
    sealed_lines,
    unsealed_lines,
    write_atomically,
)
from orchestrator.records.slice_files import identity
from orchestrator.records.slices import Slice

REMEDY = "remove it; only texts are lost, the counts of its slice stay"


@dataclass(frozen=True)
class ResponseText:
    """One response with its grade.

    `prompt` is the text that the model read, with its template. `sample` is the number of the
    response among those to its problem. `answer` is None for a response without a box. `tokens`
    includes the end token of the response, as lengths do everywhere.
    """

    problem: str
    sample: int
    prompt: str
    gold: str | None
    text: str
    answer: str | None
    right: bool
    truncated: bool
    timed_out: bool
    tokens: int

    @property
    def failure(self) -> str | None:
        """The first of FAILURES that fits; None for a right answer that was not cut off."""
        return next((name for name, fits in FAILURES.items() if fits(self)), None)


# A cause comes before its effect: most truncated responses have no answer.
FAILURES: dict[str, Callable[[ResponseText], bool]] = {
    "timed out": lambda text: text.timed_out,
    "truncated": lambda text: text.truncated,
    "no answer": lambda text: text.answer is None,
    "wrong": lambda text: not text.right,
}


def write_texts(folder: Path, part: Slice, texts: Sequence[ResponseText]) -> None:
    """Write the texts of a slice, ordered by problem and sample.

    They replace the texts that a killed evaluator left there, which may be of other responses.
    """
    path = folder / part.texts_name
    if not texts:
        path.unlink(missing_ok=True)
        return
    lines = "".join(json.dumps(vars(text), ensure_ascii=False) + "\n" for text in texts)
    content = sealed_lines(lines, identity(folder, part))
    write_atomically(path, compressed(content), shared=True)


def read_texts(folder: Path, part: Slice) -> list[ResponseText]:
    """The kept texts of a slice, ordered by problem and sample; empty without a file.

    Raises Damaged if the file is not what was written, or holds texts of another slice than its
    name and its folder say.
    """
    path = folder / part.texts_name
    data = read_bytes(path, REMEDY)
    if data is None:
        return []
    content = decompressed(data, path, REMEDY)
    lines = unsealed_lines(content, path, REMEDY, identity(folder, part))
    texts = [ResponseText(**row) for row in parse_rows(lines, path, REMEDY)]
    # Every problem has the same number of texts, those of the slice's first samples. So a reader
    # finds the problem of a text by its position.
    kept, rest = divmod(len(texts), part.width)
    sound = rest == 0 and kept <= part.samples
    for position, text in enumerate(texts):
        number = position % max(1, kept)
        sound = sound and text.sample == part.sample + number
        sound = sound and text.problem == texts[position - number].problem
    if not sound:
        raise damaged(path, "does not hold what its name says", REMEDY)
    return texts
