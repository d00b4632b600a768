"""Everything that only a GPU can show, in about ten minutes.

    .venv/bin/pip install --editable ".[vllm]"
    .venv/bin/python -m benchmarks.gpu
    .venv/bin/python -m benchmarks.gpu --device cpu --size tiny --parts update packed --name gpu_rehearsal   # anywhere

* update: a LoRA update in bfloat16.
* packed: the rows of a tree one by one, and as one trie.
* engine: the sampling speed of vLLM, the memory that its sleep frees, how long a switch to another adapter takes, and
  whether its log-probabilities are then those of that adapter.
* parallel: the log-probabilities of an engine on two GPUs.
* round: one round of ``treeagent train MODEL --config models/gpu1_lora``.

The first four parts use a model with random weights. Each part runs in a process of its own, because an engine keeps
its memory until its process ends.
"""

import argparse
import json
import multiprocessing
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from benchmarks.command import options_digest, parser, record_of
from benchmarks.record import Row
from treeagent.agent.checkpoint import with_adapter
from treeagent.generators.base import Sample, SampleRequest
from treeagent.generators.config import LoraConfig, VllmConfig
from treeagent.learners.config import GRPOConfig, Precision, SFTConfig
from treeagent.learners.grpo import train_grpo
from treeagent.learners.packed import Model
from treeagent.learners.sft import train_sft
from treeagent.views.advantages import AdvantageRow
from treeagent.views.tokens import TokenRow

QUESTION = "What do sampling, updates and a round take on a GPU?"
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Size:
    """The shape of a model with random weights, and of the rows that it is trained on."""

    layers: int
    width: int
    vocabulary: int
    row: int
    """Tokens per row."""
    batch: int
    steps: int


SIZES: Mapping[str, Size] = {
    "tiny": Size(layers=2, width=128, vocabulary=1024, row=96, batch=4, steps=3),
    "0.6B": Size(layers=28, width=1024, vocabulary=151_936, row=1500, batch=8, steps=12),
}


@dataclass(frozen=True, slots=True)
class Place:
    """The device, model size and model that a part runs with."""

    device: str
    size: Size
    model: str
    """The model of the part "round"."""


def make_model(machine: Place, seed: int = 0) -> Qwen3ForCausalLM:
    """A model in bfloat16 on a GPU, in float32 elsewhere."""
    torch.manual_seed(seed)
    size = machine.size
    shape = Qwen3Config(
        vocab_size=size.vocabulary,
        hidden_size=size.width,
        intermediate_size=3 * size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.width // 64,
        num_key_value_heads=size.width // 64,
        head_dim=64,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        initializer_range=size.width**-0.5,
    )
    model = Qwen3ForCausalLM(shape)
    moved: Qwen3ForCausalLM = model.to(torch.device(machine.device), _dtype(machine))  # type: ignore[arg-type]  # PEFT's stub
    return moved


def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1}, "<pad>"))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")


def words(shuffler: random.Random, machine: Place, count: int) -> tuple[int, ...]:
    return tuple(shuffler.randrange(2, machine.size.vocabulary) for _ in range(count))


def adapted(machine: Place) -> Model:
    return with_adapter(make_model(machine), LoraConfig(rank=16), seed=0)


def update(machine: Place) -> dict[str, float]:
    """Speed and memory of LoRA updates on whole rows."""
    size, shuffler, model = machine.size, random.Random(0), adapted(machine)
    rows = [
        TokenRow(f"task-{number}", words(shuffler, machine, size.row), (False, *(True,) * (size.row - 1)))
        for number in range(size.batch * size.steps)
    ]
    config = SFTConfig(batch_size=size.batch, max_steps=size.steps, precision=_precision(machine))
    with peak(machine) as memory:
        each = step_seconds(lambda done: train_sft(model, tokenizer(), rows, config, on_progress=done))
    return {"tokens / s": size.batch * size.row / each, "s / step": each, "GiB": memory()}


def packed(machine: Place) -> dict[str, float]:
    """GRPO on eight siblings of a tree that share two thirds of their tokens: one by one, and packed."""
    size, shuffler, found = machine.size, random.Random(0), dict[str, float]()
    rows = list[AdvantageRow]()
    for number in range(size.steps):
        prompt, action = words(shuffler, machine, size.row * 2 // 3), size.row // 3
        for sibling in range(8):
            advantages = ((-1.0) ** sibling,) * action
            action_ids = words(shuffler, machine, action)
            rows.append(
                AdvantageRow(f"task-{number}", prompt, action_ids, (True,) * action, advantages, (-1.0,) * action)
            )
    for name, together in (("one by one", False), ("packed", True)):
        model = adapted(machine)
        config = GRPOConfig(
            batch_size=8, max_steps=size.steps, packed=together, precision=_precision(machine), learning_rate=1e-5
        )
        with peak(machine) as memory:
            each = step_seconds(
                lambda done, model=model, config=config: train_grpo(  # type: ignore[misc]
                    model, tokenizer(), rows, config, on_progress=done
                )
            )
        found |= {f"s / step, {name}": each, f"GiB, {name}": memory()}
    return found | {"ratio": found["s / step, one by one"] / found["s / step, packed"]}


def engine(machine: Place) -> dict[str, float]:
    """vLLM with an adapter: speed, sleep, and a switch to another adapter."""
    from treeagent.generators.vllm import VllmGenerator

    with tempfile.TemporaryDirectory() as name:
        base, folders = _saved(machine, Path(name))
        dtype = _precision(machine)
        generator = VllmGenerator(
            str(base), folders[0], VllmConfig(gpu_memory_utilization=0.5, max_model_len=4096), dtype
        )
        shuffler, prompts = random.Random(0), machine.size.batch
        request = SampleRequest(
            [words(shuffler, machine, machine.size.row) for _ in range(prompts)],
            4,
            range(prompts),
            stop_id=1,
            max_new_tokens=64,
        )
        generator.sample(request)  # warm-up
        generator.usage.generated_tokens = 0
        took = seconds(lambda: generator.sample(request))
        held = _free(machine)
        slept = seconds(generator.forget)
        freed = _free(machine) - held
        switched = seconds(lambda: generator.load(str(base), folders[1]))
        generated = generator.usage.generated_tokens
        samples = generator.sample(request)
        found = {
            "generated tokens / s": generated / took,
            "s to sleep": slept,
            "GiB freed by sleep": freed / GIB,
            "s to switch": switched,
        }
        generator.close()
        found["largest difference of log-probabilities"] = _difference(machine, folders[1], request, samples)
    return found


def parallel(machine: Place) -> dict[str, float]:
    """vLLM on two GPUs: the difference of its log-probabilities from those of the model on one."""
    from treeagent.generators.vllm import VllmGenerator

    with tempfile.TemporaryDirectory() as name:
        base, folders = _saved(machine, Path(name))
        dtype = _precision(machine)
        generator = VllmGenerator(str(base), folders[0], VllmConfig(2, 0.4, 4096), dtype)
        request = SampleRequest(
            [words(random.Random(0), machine, machine.size.row)] * 8, 4, range(8), stop_id=1, max_new_tokens=64
        )
        samples = generator.sample(request)
        generator.close()
        return {"largest difference of log-probabilities": _difference(machine, folders[0], request, samples)}


def training_round(machine: Place) -> dict[str, float]:
    """One round of search and update, started as a user starts it."""
    small = [
        "adapt.rounds=1", "collect.tasks=16", "search.limits.simulations=8", "update.validation_tasks=16",
        "evaluate.tasks=16", 'evaluate.modes=["greedy"]', "update.dpo.max_steps=10", "update.grpo.max_steps=10",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "run"
        command = ["train", machine.model, "--config", "models/gpu1_lora", "--out", str(out), *small]
        took = seconds(lambda: subprocess.run([sys.executable, "-m", "treeagent", *command], check=True))
        stages: Mapping[str, Mapping[str, float]] = json.loads((out / "stages.json").read_text())
        rows = json.loads((out / "results.json").read_text())
        return {"seconds": took, "stages": len(stages), "success after": rows[-1]["success"]}


PARTS: Mapping[str, Callable[[Place], dict[str, float]]] = {
    "update": update,
    "packed": packed,
    "engine": engine,
    "parallel": parallel,
    "round": training_round,
}
ENGINES = ("engine", "parallel", "round")
"""Parts that need vLLM."""


def refusal(part: str, device: str) -> str:
    """Why a part cannot run here; empty if it can."""
    if part in ENGINES and find_spec("vllm") is None:
        return "vllm is missing: pip install 'treeagent[vllm]'"
    if part == "round" and device != "cuda":
        return "the recipe models/gpu1_lora is one for a GPU"
    if part == "parallel" and torch.cuda.device_count() < 2:
        return f"it takes two GPUs, and there is {torch.cuda.device_count()}"
    return ""


def step_seconds(training: Callable[[Callable[[int, int], None]], object]) -> float:
    """Mean seconds of an optimiser step. The first step is left out, because it also loads what it needs."""
    times: list[float] = []
    training(lambda done, total: times.append(time.perf_counter()))
    return (times[-1] - times[1]) / (len(times) - 2)


@contextmanager
def peak(machine: Place) -> Iterator[Callable[[], float]]:
    """Yields a function that returns the peak GPU memory allocated since the block began, in GiB; 0 without a GPU."""
    if machine.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    yield lambda: torch.cuda.max_memory_allocated() / GIB if machine.device == "cuda" else 0.0


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _dtype(machine: Place) -> torch.dtype:
    return torch.bfloat16 if machine.device == "cuda" else torch.float32


def _precision(machine: Place) -> Precision:
    return "bfloat16" if machine.device == "cuda" else "float32"


def _free(machine: Place) -> int:
    """Free GPU memory in bytes; 0 without a GPU."""
    return int(torch.cuda.mem_get_info()[0]) if machine.device == "cuda" else 0


def _saved(machine: Place, folder: Path) -> tuple[Path, list[Path]]:
    """Save a base model and two different adapters. Returns their folders."""
    model = adapted(machine)
    base = folder / "base"
    make_model(machine).save_pretrained(base)
    adapters = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.02)
        adapters.append(folder / f"adapter{seed}")
        model.peft_config["default"].base_model_name_or_path = str(base)
        model.save_pretrained(str(adapters[-1]))
    return base, adapters


@torch.no_grad()
def _difference(machine: Place, adapter: Path, request: SampleRequest, samples_by_prompt: Sequence[object]) -> float:
    """The largest absolute difference between the samples' log-probabilities and those of a forward pass of the adapted
    model."""
    from peft import PeftModel

    model, found = PeftModel.from_pretrained(make_model(machine), str(adapter)).eval(), 0.0
    for prompt, samples in zip(request.prompts[:8], samples_by_prompt[:8], strict=True):
        assert isinstance(samples, list)
        for sample in samples:
            assert isinstance(sample, Sample)
            ids = torch.tensor([[*prompt, *sample.token_ids]], device=machine.device)
            plain = model(ids).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
            logprobs = plain.gather(-1, ids[0, len(prompt) :, None])[:, 0].cpu()
            found = max(found, float((logprobs - torch.tensor(sample.logprobs)).abs().max()))
    return found


def main() -> None:
    options = parser(__doc__, "gpu", seeds=())
    options.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    options.add_argument("--size", choices=list(SIZES), default="0.6B", help="of the model of random weights")
    options.add_argument("--model", default="Qwen/Qwen3-0.6B", help="folder or hub name, for the part round")
    options.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    arguments: argparse.Namespace = options.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        options.error("torch finds no GPU: run it where there is one, or rehearse with --device cpu --size tiny")
    machine = Place(arguments.device, SIZES[arguments.size], arguments.model)
    settings = options_digest(arguments, "parts")
    with record_of(arguments, QUESTION) as record:
        for part in arguments.parts:
            if why := refusal(part, arguments.device):
                print(f"{part} is left out: {why}", flush=True)
            elif not record.has(part, 0, settings):
                with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
                    figures = pool.submit(PARTS[part], machine).result()
                record.add(Row(part, 0, settings, figures=figures))
                print(part, ", ".join(f"{name} {value:.4g}" for name, value in figures.items()), flush=True)


if __name__ == "__main__":
    main()
