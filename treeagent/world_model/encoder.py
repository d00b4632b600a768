"""Embed texts as vectors; the cosine of two vectors measures the similarity of the texts. This needs no model."""

import math
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
_WORD = re.compile(r"\w+|[^\w\s]")


def encode(texts: Sequence[str], dimension: int = 128) -> Vectors:
    """Embed words, word bigrams and word prefixes of each text by feature hashing with signs (Weinberger et al. 2009).

    A feature that occurs n times counts 1 + log n, so that one frequent word does not outweigh the others. Returns rows
    of length 1, [texts, dimension]; an empty text gives zeros.
    """
    rows = np.zeros((len(texts), dimension), np.float32)
    for row, text in zip(rows, texts, strict=True):
        for feature, count in Counter(_features(text)).items():
            hashed = zlib.crc32(feature.encode())
            row[hashed % dimension] += (1 if hashed >> 31 else -1) * (1 + math.log(count))
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1), np.float32)


def _features(text: str) -> Iterator[str]:
    words = _WORD.findall(text.lower())
    yield from words
    yield from (f"{one} {other}" for one, other in pairwise(words))
    yield from (f"{word[:4]}*" for word in words if len(word) > 4)
