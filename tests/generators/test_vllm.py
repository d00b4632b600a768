"""The vLLM engine against the model that it runs. Needs the vllm extra: pytest -m vllm -W default."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import peft
import pytest
import torch
from toy_llama import CONFIG, next_logprobs, plain_logprobs, sharpened, tokenizer
from transformers import PreTrainedModel

from treeagent.generators.base import Failure, Sample, SampleRequest
from treeagent.generators.chat import ChatFormat
from treeagent.generators.config import VllmConfig
from treeagent.generators.local import LocalGenerator
from treeagent.generators.scratch import random_model
from treeagent.generators.structured import Form

pytest.importorskip("vllm", reason="wants the vllm extra")

from treeagent.generators.vllm import VllmGenerator

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]  # -W default: vllm warns on import
PROMPTS = [tuple(10 + place % 300 for place in range(length)) for length in (9, 23, 1, 300)]
SEEDS = [10, 11, 12, 13]
NEVER = len(tokenizer()) - 1


def network(seed: int, *, tied: bool = True) -> PreTrainedModel:
    """A network with heads of a width that the engine's CPU kernels support."""
    made = sharpened(random_model(tokenizer(), replace(CONFIG, width=64, context=512), seed))
    if not tied:
        made.config.tie_word_embeddings = False
        output = made.get_output_embeddings()
        output.weight = torch.nn.Parameter(output.weight.detach().clone())
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models")
    for seed in (0, 1):
        network(seed).save_pretrained(made / str(seed))
        network(seed, tied=False).save_pretrained(made / f"untied{seed}")
    for name, rank in (("adapter", 4), ("adapter8", 8), ("adapter9", 9)):
        settings = peft.LoraConfig(task_type="CAUSAL_LM", r=rank, target_modules="all-linear", init_lora_weights=False)
        torch.manual_seed(0)
        peft.get_peft_model(network(0), settings).save_pretrained(str(made / name))
    return made


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[VllmGenerator]:
    made = VllmGenerator(str(folder / "0"), None, VllmConfig(), "float32")
    yield made
    made.close()


def drawn_by(engine: VllmGenerator, request: SampleRequest) -> list[list[Sample]]:
    drawn = engine.sample(request)
    assert not any(isinstance(each, Failure) for each in drawn)
    return cast(list[list[Sample]], drawn)


def difference(engine: VllmGenerator, model: PreTrainedModel, temperature: float) -> float:
    """The largest absolute difference between the engine's log-probabilities of its samples and the model's."""
    count = 4 if temperature else 1
    drawn = drawn_by(
        engine, SampleRequest(PROMPTS, count, SEEDS, stop_id=NEVER, max_new_tokens=12, temperature=temperature)
    )
    found = 0.0
    for prompt, samples in zip(PROMPTS, drawn, strict=True):
        assert len({sample.token_ids for sample in samples}) == count
        for sample in samples:
            expected = plain_logprobs(model, prompt, sample.token_ids, temperature)
            found = max(found, float((torch.tensor(sample.logprobs) - expected).abs().max()))
    return found


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_log_probabilities_are_the_models_own(engine: VllmGenerator, folder: Path, temperature: float) -> None:
    assert engine.load(str(folder / "0"), None)
    assert difference(engine, network(0), temperature) < 1e-4
    scores = [next_logprobs(each, PROMPTS, [7, 300, 42]) for each in (engine, LocalGenerator(network(0)))]
    torch.testing.assert_close(*scores, atol=1e-4, rtol=0)


# Each test below has an engine of its own. The end of an engine in this process may end the shared one, too.


def test_new_weights_take_effect_and_stale_prefixes_go(folder: Path) -> None:
    engine = VllmGenerator(str(folder / "untied0"), None, VllmConfig(), "float32")
    for seed in (0, 1, 0):
        assert engine.load(str(folder / f"untied{seed}"), None)
        assert difference(engine, network(seed, tied=False), 1.0) < 1e-4
    engine.close()


def test_turns_are_held_to_their_form(folder: Path) -> None:
    """Draws and log-probabilities are those of the model renormalised over the tokens that the form allows."""
    chat, model = ChatFormat(tokenizer()), network(0)
    tokenizer().save_pretrained(str(folder / "0"))
    form = Form(chat, lambda spelt: f"turn: {spelt('Action: ')} CALL\nCALL: /(go|stay) [a-c]{{2,4}}/")
    engine = VllmGenerator(str(folder / "0"), None, VllmConfig(), "float32", structured=True)
    drawn = drawn_by(engine, SampleRequest(PROMPTS, 4, SEEDS, stop_id=chat.stop_id, max_new_tokens=30, form=form))
    for prompt, samples in zip(PROMPTS, drawn, strict=True):
        for sample in samples:
            assert re.fullmatch("Action: (go|stay) [abc]{2,4}", chat.decode(sample.token_ids))
            assert sample.token_ids[-1] == chat.stop_id
            assert sample.logprobs == pytest.approx(allowed_logprobs(model, prompt, sample.token_ids, form), abs=1e-4)
    free = drawn_by(engine, SampleRequest(PROMPTS[:1], 4, SEEDS[:1], stop_id=chat.stop_id, max_new_tokens=30))
    assert not any(chat.decode(sample.token_ids).startswith("Action") for sample in free[0])
    engine.close()


def allowed_logprobs(model: PreTrainedModel, prompt: tuple[int, ...], ids: tuple[int, ...], form: Form) -> list[float]:
    logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1].detach()
    states, found = form.begun([()], 1), []
    for row, token in zip(logits, ids, strict=True):
        allowed = torch.from_numpy(form.allowed(states, logits.shape[-1])[0, 0])
        found.append(float(row.masked_fill(~allowed, -torch.inf).log_softmax(-1)[token]))
        form.advance(states, [[token]])
    return found


def test_an_adapter_runs_on_its_base(folder: Path) -> None:
    engine = VllmGenerator(str(folder / "0"), folder / "adapter", VllmConfig(), "float32")
    adapted = peft.PeftModel.from_pretrained(network(0), str(folder / "adapter")).eval()
    assert difference(engine, cast(PreTrainedModel, adapted), 1.0) < 1e-4
    assert difference(engine, network(0), 1.0) > 0.05
    assert not engine.load(str(folder / "0"), folder / "adapter9")  # an adapter of rank 4 leaves room for rank 8
    assert engine.load(str(folder / "0"), folder / "adapter8")
    wider = peft.PeftModel.from_pretrained(network(0), str(folder / "adapter8")).eval()
    assert difference(engine, cast(PreTrainedModel, wider), 1.0) < 1e-4
    engine.close()
