"""Reads rows of a Hugging Face hub dataset at a pinned commit, through the `datasets` library."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from orchestrator.errors import UserError, refuse


def check_hub_id(key: str, path: str, revision: str | None) -> None:
    """Raise UserError unless `path` and `revision` name a hub dataset at a commit."""
    if path.startswith((".", "/", "~")):
        raise refuse(f"{key}.path", path, "a file or folder that is there, or a hub id")
    if not re.fullmatch("[0-9a-f]{40}", revision or ""):
        raise refuse(
            f"{key}.revision", revision, f"the commit (40 hex digits) of the hub dataset {path}"
        )


def iterate_hub(
    key: str,
    path: str,
    revision: str | None,
    columns: Sequence[str] | None,
    split: str,
    subset: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Stream rows in the dataset's order: none are kept on disk, few in memory.

    `key` names the dataset in messages; `columns` None takes all. UserError if the dataset is
    unavailable.
    """
    check_hub_id(key, path, revision)
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError(
            f"{key}.path: {path!r} is no local file; for hub data: pip install 'trb[hub]'"
        ) from None
    try:
        rows = datasets.load_dataset(
            path, name=subset, revision=revision, split=split, streaming=True
        )
        yield from rows if columns is None else rows.select_columns(list(columns))
    except Exception as error:  # of the library, its HTTP client (it varies by version), or formats
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(
            f"{key}.path: {path}@{revision} cannot be had from the hub ({reason})"
        ) from None
