"""A model of sentence-transformers as an encoder."""

from collections.abc import Sequence

import numpy as np

from treeagent.types import UserError
from treeagent.world_model.encoder import Vectors, unit

try:
    from sentence_transformers import SentenceTransformer
except ImportError as error:
    raise UserError(f"sentence-transformers is missing ({error}): pip install 'treeagent[sentences]'") from error


class SentenceEncoder:
    """Embeds texts by the model in a folder or of a hub name.

    Raises:
        UserError: there is none.
    """

    def __init__(self, name: str, device: str) -> None:
        try:
            self._model = SentenceTransformer(name, device=device)
        except (OSError, ValueError, RuntimeError, AssertionError) as error:  # torch asserts that there is a GPU
            reason = str(error).partition("\n")[0]
            raise UserError(
                f"world.encoder.model {name!r} cannot be loaded ({reason}): name a model of sentence-transformers, "
                "and a world.device_map that this machine has"
            ) from error

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Rows of length 1, [texts, the model's dimension]. A text too long for the model counts by its beginning."""
        return unit(np.asarray(self._model.encode([*texts], show_progress_bar=False), np.float32))
