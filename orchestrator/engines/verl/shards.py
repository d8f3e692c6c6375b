"""A learner's state as files of rows: each rank writes its own, and any number of ranks reads them.

FSDP2 cuts every parameter along its first dimension into one block of ⌈rows ÷ ranks⌉ rows per rank;
the last blocks may be shorter or empty. Saving therefore gathers nothing, and shapes alone give the
location of rows.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from orchestrator.records.files import damaged
from orchestrator.records.rundir import LEARNER_FOLDER

REMEDY = "remove the unit's folder; trb submit trains the unit again"


def rank_file(folder: Path, rank: int, ranks: int) -> Path:
    """The file of a rank's part of the learner's state in a checkpoint."""
    return folder / LEARNER_FOLDER / f"rank_{rank + 1:05d}_of_{ranks:05d}.safetensors"


def own_rows(rows: int, rank: int, ranks: int) -> tuple[int, int]:
    """The range [first, end) of a tensor's `rows` rows that `rank` of `ranks` holds."""
    block = -(-rows // ranks)
    return min(rank * block, rows), min((rank + 1) * block, rows)


class SavedRows:
    """The rows that all ranks of an earlier process wrote."""

    def __init__(self, folder: Path):
        """Open the files of a checkpoint. Raises Damaged if one is missing."""
        self._folder = folder / LEARNER_FOLDER
        names = sorted(path.name for path in self._folder.glob("rank_*_of_*.safetensors"))
        ranks = len(names)
        if not ranks or names != [rank_file(folder, rank, ranks).name for rank in range(ranks)]:
            raise damaged(self._folder, "doesn't hold a file of each rank", REMEDY)
        self._stack = ExitStack()
        self._files: list[Any] = []
        for name in names:
            file = safe_open(self._folder / name, framework="pt")
            self._files.append(self._stack.enter_context(file))
        self._keys = set(self._files[0].keys())

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def value(self, key: str) -> Tensor:
        """A tensor that is the same in all ranks' files."""
        return self._files[0].get_tensor(key)

    def rows(self, key: str, start: int, end: int) -> Tensor:
        """Rows [start, end) of a tensor from the ranks' files."""
        parts: list[Tensor] = []
        offset = 0  # of the file's first row in the whole tensor
        for file in self._files:
            part = file.get_slice(key)
            rows = part.get_shape()[0]
            first = max(start, offset)
            last = min(end, offset + rows)
            if first < last:
                parts.append(part[first - offset : last - offset])
            offset += rows
        if sum(map(len, parts)) != end - start:
            raise damaged(self._folder, f"has {offset} rows of {key}, not {end} or more", REMEDY)
        return torch.cat(parts) if parts else self._files[0].get_tensor(key)[:0]

    def close(self) -> None:
        """Close the files."""
        self._stack.close()
