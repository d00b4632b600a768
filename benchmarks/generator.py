"""How much faster the local generator is than ``model.generate`` at the states of a search, with K samples per state.

    .venv/bin/python -m benchmarks.generator

The model is a Qwen3 with random weights, on the GPU if there is one, else on one thread. Each tree grows along one
path: K actions are sampled at a state, one of them is followed, and an observation is appended. Both sides sample the
same number of tokens at the same states. "one at a time" is the local generator with K requests of one sample each, as
search makes them. Repetitions alternate between the sides, so that other load on the machine affects all alike.
Seconds are CPU seconds, or wall-clock seconds on a GPU.
"""

import random
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from benchmarks.command import Figures, add_rounds, options_digest, record_of, repeating
from treeagent.generators.base import Sample, SampleRequest
from treeagent.generators.local import LocalGenerator

QUESTION = "How many tokens a second does the local generator draw at a search's states, against `model.generate`?"
VOCABULARY = 4096
CUDA = torch.cuda.is_available()
State = tuple[int, ...]


def make_model(layers: int, width: int, dtype: torch.dtype) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    shape = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=width * 8 // 3 // 16 * 16,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 64,
        head_dim=64,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        initializer_range=width**-0.5,
    )
    model: Qwen3ForCausalLM = Qwen3ForCausalLM(shape).eval().to("cuda" if CUDA else "cpu", dtype)
    return model


def words(shuffler: random.Random, count: int) -> State:
    return tuple(shuffler.randrange(VOCABULARY) for _ in range(count))


def draw(generator: LocalGenerator, states: list[State], count: int, new: int) -> list[list[Sample]]:
    return generator.sample(SampleRequest(states, count, range(len(states)), stop_id=-1, max_new_tokens=new))


def grow(
    generator: LocalGenerator, trees: int, depth: int, prompt: int, observation: int, count: int, new: int
) -> list[list[State]]:
    """The states of all trees at each depth."""
    shuffler = random.Random(0)
    states = [[words(shuffler, prompt) for _ in range(trees)]]
    while len(states) < depth:
        samples_by_state = draw(generator, states[-1], count, new)
        followed = [state + samples[0].token_ids for state, samples in zip(states[-1], samples_by_state, strict=True)]
        states.append([state + words(shuffler, observation) for state in followed])
    return states


@torch.no_grad()
def generate(model: Qwen3ForCausalLM, states: list[State], count: int, new: int) -> None:
    settings = GenerationConfig(
        do_sample=True,
        top_k=0,
        top_p=1.0,
        num_return_sequences=count,
        max_new_tokens=new,
        min_new_tokens=new,
        pad_token_id=0,
    )
    ids = torch.tensor(states, device=model.device)
    generated: Any = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)  # type: ignore[misc]
    assert generated.shape == (len(states) * count, len(states[0]) + new)


@torch.no_grad()
def difference(model: Qwen3ForCausalLM, states: list[State], samples_by_state: list[list[Sample]]) -> float:
    """The largest absolute difference between the samples' log-probabilities and those of one forward pass over each
    sample."""
    found = 0.0
    for state, samples in zip(states, samples_by_state, strict=True):
        ids = torch.tensor([[*state, *sample.token_ids] for sample in samples], device=model.device)
        logprobs = model(ids).logits[:, len(state) - 1 : -1].float().log_softmax(-1)
        plain = logprobs.gather(-1, ids[:, len(state) :, None])[..., 0].cpu()
        found = max(found, float((plain - torch.tensor([sample.logprobs for sample in samples])).abs().max()))
    return found


def seconds(work: Callable[[], object]) -> float:
    if not CUDA:
        started = time.process_time()
        work()
        return time.process_time() - started
    torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def main() -> None:
    options = repeating(__doc__, "generator", rounds=5)
    options.add_argument("--layers", type=int, default=4)
    options.add_argument("--width", type=int, default=256)
    options.add_argument("--trees", type=int, default=2)
    options.add_argument("--depth", type=int, default=4)
    options.add_argument("--candidates", type=int, default=8, help="K")
    options.add_argument("--action", type=int, default=24, help="tokens of an action")
    options.add_argument("--observation", type=int, default=40, help="tokens of an observation")
    options.add_argument("--prompts", type=int, nargs="+", default=[128, 512], help="tokens of a task's opening")
    options.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    arguments = options.parse_args()
    torch.set_num_threads(1)
    model = make_model(arguments.layers, arguments.width, getattr(torch, arguments.dtype))
    count, new = arguments.candidates, arguments.action
    tokens = arguments.trees * arguments.depth * count * new
    settings = options_digest(arguments, "prompts")
    with record_of(arguments, QUESTION) as record:
        for prompt in arguments.prompts:
            generator = LocalGenerator(model)
            states = grow(generator, arguments.trees, arguments.depth, prompt, arguments.observation, count, new)
            arm = f"{count} samples behind {prompt} tokens"

            def local(generator: LocalGenerator = generator, states: list[list[State]] = states) -> None:
                generator.forget()  # every repetition starts with an empty cache
                for each in states:
                    draw(generator, each, count, new)

            def single(generator: LocalGenerator = generator, states: list[list[State]] = states) -> None:
                generator.forget()
                for each in states:
                    for _ in range(count):
                        draw(generator, each, 1, new)

            def plain(states: list[list[State]] = states) -> None:
                for each in states:
                    generate(model, each, count, new)

            def measure(
                number: int,
                arm: str = arm,
                local: Callable[[], None] = local,
                single: Callable[[], None] = single,
                plain: Callable[[], None] = plain,
                generator: LocalGenerator = generator,
                states: list[list[State]] = states,
            ) -> Figures:
                if number == 0:  # warm-up: the first call of either side loads what it needs
                    plain()
                    local()
                theirs, ours, one_by_one = seconds(plain), seconds(local), seconds(single)
                found = {
                    "generate, tokens / s": tokens / theirs,
                    "local, tokens / s": tokens / ours,
                    "local, one at a time, tokens / s": tokens / one_by_one,
                    "ratio": theirs / ours,
                    "together ÷ one at a time": one_by_one / ours,
                }
                if number == 0:
                    differences = (difference(model, each, draw(generator, each, count, new)) for each in states)
                    found["largest difference of log-probabilities"] = max(differences)
                return {arm: found}

            add_rounds(record, arguments.rounds, settings, [arm], measure)


if __name__ == "__main__":
    main()
