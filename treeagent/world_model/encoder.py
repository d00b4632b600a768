"""Embed texts as vectors; the cosine of two vectors measures the similarity of the texts. The default encoder needs no
model and no download."""

import math
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, model_validator
from pydantic.dataclasses import dataclass as config_dataclass

from treeagent.types import REACHES_OUT

Vectors = NDArray[np.float32]
_WORD = re.compile(r"\w+|[^\w\s]")


@config_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class EncoderConfig:
    """The encoder with which similar steps are found."""

    kind: Literal["lexical", "sentence-transformers", "hidden-states"] = "lexical"
    """How two steps are compared: "lexical" by the words they share, "sentence-transformers" by the embeddings of a
    model of that library, "hidden-states" by the hidden states of a language model."""
    model: Annotated[str | None, REACHES_OUT] = None
    """Folder or hub name of the encoder's model. If unset, "hidden-states" uses the run's own policy,
    RUN/checkpoints/warm."""

    @model_validator(mode="after")
    def _check_model(self) -> Self:
        if self.kind == "sentence-transformers" and self.model is None:
            raise ValueError("kind is 'sentence-transformers', but no model is named: set model, such as to a folder")
        if self.kind == "lexical" and self.model is not None:
            raise ValueError(
                f"model is {self.model!r}, but kind is 'lexical', which has none: set kind to 'sentence-transformers' "
                "or 'hidden-states', or leave model out"
            )
        return self


class Encoder(Protocol):
    """Embeds texts."""

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return one row per text, [texts, dimension]. A text's row must not depend on the rest of the batch."""
        ...


@dataclass(frozen=True, slots=True)
class LexicalEncoder:
    """Embeds words, word bigrams and word prefixes by feature hashing with signs (Weinberger et al. 2009).

    A feature that occurs n times counts 1 + log n, so that one frequent word does not outweigh the others.
    """

    dimension: int = 128

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return rows of length 1; an empty text gives zeros."""
        rows = np.zeros((len(texts), self.dimension), np.float32)
        for row, text in zip(rows, texts, strict=True):
            for feature, count in Counter(_features(text)).items():
                hashed = zlib.crc32(feature.encode())
                row[hashed % self.dimension] += (1 if hashed >> 31 else -1) * (1 + math.log(count))
        return unit(rows)


def _features(text: str) -> Iterator[str]:
    words = _WORD.findall(text.lower())
    yield from words
    yield from (f"{one} {other}" for one, other in pairwise(words))
    yield from (f"{word[:4]}*" for word in words if len(word) > 4)


def unit(rows: Vectors) -> Vectors:
    """Scale each row to length 1; rows of zeros stay."""
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1), np.float32)
