"""A sentence-transformers model, made here, that finds similar steps."""

from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from shop_steps import OpenBuffer, shop_steps
from transformers import BertConfig, BertModel, BertTokenizer

from treeagent.types import UserError
from treeagent.world_model.sentences import SentenceEncoder

WIDTH = 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights and one token per letter."""
    plain, made = tmp_path_factory.mktemp("bert"), tmp_path_factory.mktemp("sentences")
    letters = "abcdefghijklmnopqrstuvwxyz0123456789$[]().,:-'"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    (plain / "vocab.txt").write_text("\n".join(words))
    BertTokenizer(str(plain / "vocab.txt")).save_pretrained(str(plain))
    config = BertConfig(
        vocab_size=len(words), hidden_size=WIDTH, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )
    BertModel(config).save_pretrained(str(plain))
    SentenceTransformer(modules=[Transformer(str(plain)), Pooling(WIDTH)], device="cpu").save(str(made))
    return made


def test_sentences_embed_steps(folder: Path, open_buffer: OpenBuffer) -> None:
    steps = shop_steps(3)
    encoder = SentenceEncoder(str(folder), "cpu")
    rows = encoder.encode(["red lamp", "", "red lamp", "lamp " * 999])
    assert rows.shape == (4, WIDTH)
    assert rows[0] == pytest.approx(rows[2], abs=1e-5)
    assert (rows**2).sum(-1) == pytest.approx([1.0] * 4, abs=1e-4)
    buffer = open_buffer(encoder)
    buffer.add(steps)
    (near,) = buffer.nearest([(steps[1].history, steps[1].action)], 1)
    assert near == [steps[1]]


def test_a_folder_without_a_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"world.encoder.model '.*' cannot be loaded .*: name a model of sentence"):
        SentenceEncoder(str(tmp_path / "nowhere"), "cpu")
    with pytest.raises(UserError, match=r"cannot be loaded"):
        SentenceEncoder(str(tmp_path), "cpu")


def test_a_device_that_is_not_there_is_told(folder: Path) -> None:
    with pytest.raises(UserError, match=r"and a world.device_map that this machine has"):
        SentenceEncoder(str(folder), "cuda:99")
