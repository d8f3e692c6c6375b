"""Opens a setup's only tokenizer, the teacher's."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from orchestrator.engines.interface import ModelFolder
from orchestrator.records.files import verify_files


def open_tokenizer(teacher: ModelFolder) -> PreTrainedTokenizerBase:
    """Open the tokenizer in the teacher's folder, verify its files, and run no code from there."""
    known = {name: sha256 for name, sha256 in teacher.files.items() if name.startswith("tokenizer")}
    verify_files(Path(teacher.path), known, teacher.remedy)
    return AutoTokenizer.from_pretrained(teacher.path, trust_remote_code=False)
