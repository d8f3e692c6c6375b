"""Small tokenizers of the kinds that real models have, made here: no download."""

from __future__ import annotations

from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformers import PreTrainedTokenizerFast

WORDS = ["What", " is", " ", "a", "b", "c", " the", "the", ".", ",", "7", "9", "\n", "?", " ,", "+"]
SPECIAL = ["<s>", "</s>", "<end>"]
OPENED = {"single": "<s> $A", "special_tokens": [("<s>", 0)]}
CLOSED = {"single": "<s> $A </s>", "special_tokens": [("<s>", 0), ("</s>", 1)]}


def byte_level(processor: dict[str, Any] | None = None) -> PreTrainedTokenizerFast:
    """As GPT-2's, Llama 3's and Qwen's: BPE over bytes; a text begins as `processor` says."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    letters = [*SPECIAL, *alphabet, "Ġa", "Ġt", "Ġth", "Ġthe", "Ã©"]
    merges = [("Ġ", "a"), ("Ġ", "t"), ("Ġt", "h"), ("Ġth", "e"), ("Ã", "©")]
    made = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(letters)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    made.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    return _whole(made, processor)


def sentencepiece(processor: dict[str, Any] | None = None) -> PreTrainedTokenizerFast:
    """As Llama 2's and Gemma's: unigrams with ▁ for blanks, and bytes for what they lack."""
    pieces = [(token, 0.0) for token in [*SPECIAL, "<unk>"]]
    pieces += [(f"<0x{byte:02X}>", -10.0) for byte in range(256)]
    pieces += [(word.replace(" ", "▁"), -2.0) for word in [*WORDS, "▁What", "▁▁"]]
    made = Tokenizer(models.Unigram(pieces, unk_id=len(SPECIAL), byte_fallback=True))
    made.normalizer = normalizers.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.decoder = decoders.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return _whole(made, processor)


def _whole(made: Tokenizer, processor: dict[str, Any] | None) -> PreTrainedTokenizerFast:
    made.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    if processor is not None:
        made.post_processor = processors.TemplateProcessing(**processor)  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token="<s>",
        eos_token="</s>",
        clean_up_tokenization_spaces=True,  # as Llama 3's files say: texts stay as they are
    )
