"""An encoder that uses a model of sentence-transformers."""

from collections.abc import Sequence

import numpy as np

from treeagent.types import UserError
from treeagent.world_model.encoder import Vectors, unit

try:
    from sentence_transformers import SentenceTransformer
except ImportError as error:
    raise UserError(f"sentence-transformers is missing ({error}): pip install 'treeagent[sentences]'") from error


class SentenceEncoder:
    """Embeds texts with a model of sentence-transformers.

    Args:
        name: folder or hub name of the model.
        device: torch device that it runs on.

    Raises:
        UserError: the model cannot be loaded.
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
        """Return rows of length 1, [texts, the model's dimension]. Only the start of a text that is too long for the
        model is used."""
        return unit(np.asarray(self._model.encode([*texts], show_progress_bar=False), np.float32))
