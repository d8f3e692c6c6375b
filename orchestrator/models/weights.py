"""Reads which tensors a model folder holds, from the headers of its files.

Knows no architecture: `locate.check_passes` compares the names and shapes with transformers' model.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import UserError, refuse

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}  # bytes of a number
OTHERS = {"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1}
BYTES = FLOATS | OTHERS | {"F8_E4M3": 1, "F8_E5M2": 1}
LAYER = re.compile(r"(?:.*?\.)?\d+\.")  # begins the name of a tensor within a layer
COMPUTED = ("inv_freq", "masked_bias", "position_ids")  # files of old versions keep them
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
SAMPLES, SAMPLE_BYTES = 64, 4096  # of two tensors that should be equal
AGAIN = "copy the weights again"


@dataclass(frozen=True)
class Stored:
    """A tensor as a header declares it; its bytes are `file[start:end]`."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def weight_files(key: str, folder: Path) -> list[Path]:
    """The safetensors files that transformers reads in `folder`, whether they are there or not.

    Raises UserError, which begins with `key`, if the index of several files cannot be read.
    """
    if (folder / WEIGHTS).is_file() or not (folder / INDEX).is_file():
        return [folder / WEIGHTS]
    return [folder / name for name in sorted(set(_index(key, folder).values()))]


def read_tensors(key: str, folder: Path) -> dict[str, Stored]:
    """Name → tensor of all weights in `folder`; reads a few KiB of each file.

    Raises UserError unless all files are there, as long as their headers say, and agree with the
    index.
    """
    tensors: dict[str, Stored] = {}
    files = weight_files(key, folder)
    if files == [folder / WEIGHTS]:
        _check_there(key, folder)
    for file in files:
        for name, tensor in _read_header(key, file).items():
            other = tensors.setdefault(name, tensor)
            if other is not tensor and not _look_equal(other, tensor):
                raise UserError(
                    f"{key}: {name} lies in {other.file} and, with other values, in {file.name}: "
                    f"expected one tensor of each name; {AGAIN}"
                )
    if (folder / INDEX).is_file():
        _check_index(key, folder, tensors, files)
    return tensors


def check_usable(
    key: str, folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Stored]
) -> None:
    """Raise UserError unless `tensors` are plain float weights, and tied tables are one.

    Whether they are all tensors of the architecture is found by `locate.check_passes`, which asks
    transformers.
    """
    config = {**config, **(config.get("text_config") or {})}  # of models that also read images
    _check_readable(key, folder, config, tensors)
    rows = config.get("vocab_size")
    tables = [
        name
        for name, tensor in tensors.items()
        if len(tensor.shape) == 2 and tensor.shape[0] == rows and not LAYER.match(name)
    ]
    if not config.get("tie_word_embeddings") or len(tables) != 2:
        return
    one, other = (tensors[name] for name in tables)
    if one.shape == other.shape and not _look_equal(one, other):
        raise refuse(
            f"{key}: tie_word_embeddings",
            True,
            f"false in {folder / 'config.json'}, or one table: {tables[0]} and {tables[1]} differ",
        )


def missing_names(expected: Iterable[str], tensors: Mapping[str, Stored]) -> list[str]:
    """Names of `expected` that no header has, in their order."""
    return [name for name in expected if name not in tensors]


# --- files ---


def _check_there(key: str, folder: Path) -> None:
    """Raise UserError, which says what lies there instead, unless model.safetensors is there.

    An index beside it may name no other file: transformers would read the one, and SGLang those of
    the index.
    """
    file = folder / WEIGHTS
    if file.exists():
        if (folder / INDEX).is_file() and set(_index(key, folder).values()) != {WEIGHTS}:
            raise UserError(
                f"{key}: {folder} has {WEIGHTS} and an {INDEX} of other files, so that readers "
                "differ in their choice: expected one of the two"
            )
        return
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    pickles = [name for name in names if name.endswith(PICKLES) and "model" in name]
    others = [name for name in names if name.endswith((".safetensors", ".gguf"))]
    reason = "No such file or directory: expected weights as safetensors"
    if file.is_symlink():
        reason = f"a link to {file.readlink()}, which is not there: expected weights as safetensors"
    elif "adapter_config.json" in names:
        reason += " of a whole model; the folder has an adapter: merge it into its model"
    elif pickles:
        reason += (
            f"; {pickles[0]} is a pickle, which can run code: convert it with transformers' "
            "from_pretrained(OLD) and save_pretrained(NEW)"
        )
    elif others:
        reason += f", or {INDEX}; the folder has {_named(others)}"
    raise UserError(f"{key}: {file}: {reason}")


def _index(key: str, folder: Path) -> dict[str, str]:
    """Name of a tensor → name of its file, by the index of `folder`."""
    try:
        parts = json.loads((folder / INDEX).read_text(encoding="utf-8")).get("weight_map")
    except (OSError, ValueError, RecursionError, AttributeError):
        parts = None
    if not isinstance(parts, dict) or not parts:
        raise UserError(f"{key}: {folder / INDEX} is broken: expected a Hugging Face model folder")
    return {str(name): str(file) for name, file in parts.items()}


def _check_index(
    key: str, folder: Path, tensors: Mapping[str, Stored], files: Sequence[Path]
) -> None:
    """Raise UserError if the index names a tensor that the headers lack, or leaves out a file."""
    index = _index(key, folder)
    lacking = [name for name in missing_names(index, tensors) if not name.endswith(COMPUTED)]
    if lacking:
        raise UserError(
            f"{key}: {folder / index[lacking[0]]} lacks {_named(lacking)}, which {INDEX} places "
            f"there: expected the whole model; {AGAIN}"
        )
    unnamed = [name for name in tensors if name not in index]
    if unnamed:
        # Some readers take all tensors of the named files, others only those of the index.
        raise UserError(
            f"{key}: {folder / INDEX} does not name {_named(unnamed)} of "
            f"{tensors[unnamed[0]].file.name}: expected an index of all tensors; {AGAIN}"
        )
    # `model-00001-of-00003.safetensors` says how many files the model has.
    for file in files:
        part = re.fullmatch(r"model-\d+-of-(\d+)\.safetensors", file.name)
        if part and int(part[1]) != len(files):
            raise UserError(
                f"{key}: {folder / INDEX} names {len(files)} of {int(part[1])} files: "
                f"expected an index of all; {AGAIN}"
            )


def _read_header(key: str, file: Path) -> dict[str, Stored]:
    """Name → tensor of a safetensors file. Raises UserError unless it is as long as its header says.

    It has 8 bytes with the header's length, the header in JSON, then the tensors. An interrupted
    copy shows in the length alone, so no tensor is read.
    """
    tensors: dict[str, Stored] = {}
    size, begin = 0, b""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            begin = stream.read(8)
            length = int.from_bytes(begin, "little")
            header = json.loads(stream.read(length)) if 0 < length <= size - 8 else {}
        for name, entry in header.items():
            if name != "__metadata__":
                start, end = entry["data_offsets"]
                shape = tuple(int(number) for number in entry["shape"])
                tensors[name] = Stored(
                    file, str(entry["dtype"]), shape, 8 + length + start, 8 + length + end
                )
        whole = bool(tensors) and _fills(list(tensors.values()), 8 + length, size)
    except OSError as error:
        reason = error.strerror or str(error)
        if file.is_symlink() and not file.exists():
            reason = f"a link to {file.readlink()}, which is not there"
        raise UserError(f"{key}: {file}: {reason}: expected weights as safetensors") from None
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError, IndexError):
        whole = False
    if not whole:
        raise UserError(f"{key}: {file} {_not_whole(file, size, begin)}")
    return tensors


def _not_whole(file: Path, size: int, begin: bytes) -> str:
    """The reason why a file is no safetensors file, and the remedy."""
    if size == 0:
        return f"is empty; {AGAIN}"
    if begin == b"version ":
        return f"is a pointer of git-lfs without the weights: run git lfs pull in {file.parent}"
    return f"is cut off or no safetensors file; {AGAIN}"


def _fills(tensors: Sequence[Stored], begin: int, size: int) -> bool:
    """Whether tensors fill a file from `begin` to its `size`, one after the other."""
    for tensor in sorted(tensors, key=lambda tensor: (tensor.start, tensor.end)):
        numbers = math.prod(tensor.shape)
        length = tensor.end - tensor.start
        if tensor.start != begin or length != numbers * BYTES.get(
            tensor.dtype, length / max(numbers, 1)
        ):
            return False
        begin = tensor.end
    return begin == size


def _look_equal(one: Stored, other: Stored) -> bool:
    """Whether two tensors have the same dtype, shape and bytes at evenly spaced places."""
    length = one.end - one.start
    if (one.dtype, one.shape, length) != (other.dtype, other.shape, other.end - other.start):
        return False
    with one.file.open("rb") as first, other.file.open("rb") as second:
        for sample in range(SAMPLES + 1):
            offset = max(0, length - SAMPLE_BYTES) * sample // SAMPLES
            first.seek(one.start + offset)
            second.seek(other.start + offset)
            count = min(SAMPLE_BYTES, length - offset)
            if first.read(count) != second.read(count):
                return False
    return True


# --- names ---


def _check_readable(
    key: str, folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Stored]
) -> None:
    """Raise UserError unless weights are numbers that can be trained, under their own names."""
    quantised = config.get("quantization_config")
    if quantised:
        method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
        raise refuse(
            f"{key}: quantization_config",
            method,
            f"weights in float32, bfloat16 or float16: use the model without quantisation ({folder})",
        )
    for name, tensor in tensors.items():
        if tensor.dtype not in FLOATS and "weight" in name.rpartition(".")[2]:
            raise UserError(
                f"{key}: {name} in {tensor.file} is of {tensor.dtype}: expected F32, BF16 or F16: "
                "use the model without quantisation"
            )
        if ".lora_A." in name:
            raise UserError(
                f"{key}: {name} in {tensor.file} is part of an adapter: "
                "expected a whole model: merge the adapter into its model"
            )
        parts = name.split(".")
        if parts[0] == "module" or any(part.startswith("_") for part in parts[:-1]):
            raise UserError(
                f"{key}: {name} in {tensor.file} is a name of a wrapped model: expected names of "
                "the model itself: save it without its wrapper"
            )


def _named(names: Sequence[str]) -> str:
    """`a and 2 more`."""
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
