"""How fast a pretrained model plays and learns with the defaults, against plain loops on the same machine.

    make runs/smollm2
    .venv/bin/python -m benchmarks.quickstart --config quickstart_llm --seeds 0
    .venv/bin/python -m benchmarks.pretrained --runs runs/quickstart_llm

Playing: the run's warm-started policy plays the same tasks greedily, with the defaults of this machine, and in float32
in one thread, one episode after the other. "generate" samples as many tokens as the turns of these episodes by one call
of ``model.generate`` a turn, with all threads. "vLLM" plays the episodes together by an engine with all threads, if
vLLM is installed. "llama.cpp" samples as many tokens as these turns from a GGUF file of the same base (``--gguf``), if
llama-cpp-python is installed, with all threads, and reads the common prefix of two turns once. Learning: each method
takes the same steps on rows of the run's trees, and the value head is fitted to states of the first trees, with the
defaults (common prefixes once, all threads, this machine's number format), and in float32 in one thread on whole rows.
Repetitions alternate between the arms, so that other load on the machine affects all alike. Seconds are wall-clock
seconds, without loading the model.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from transformers import GenerationConfig

from benchmarks.command import Figures, add_rounds, options_digest, record_of, start_of, starting
from treeagent.agent.checkpoint import Checkpoint, load_checkpoint, with_adapter
from treeagent.config import Method, RunConfig
from treeagent.learners import packed, value
from treeagent.learners.common import Hooks
from treeagent.learners.config import DPOConfig, GRPOConfig, SFTConfig, ValueConfig
from treeagent.learners.dpo import train_dpo
from treeagent.learners.grpo import train_grpo
from treeagent.learners.sft import train_sft
from treeagent.learners.value import fit_value
from treeagent.pipeline.build import make_chat, value_head
from treeagent.pipeline.evaluate import EvaluationJob, evaluate_batch
from treeagent.pipeline.folder import Run
from treeagent.pipeline.opening import fit_to_machine, training_threads
from treeagent.pipeline.processes import run_jobs, shared_workers
from treeagent.pipeline.trees import read_trees
from treeagent.pipeline.update import TrainJob, policy_training_rows, sample_value_rows
from treeagent.search.record import from_record
from treeagent.store import read_as
from treeagent.views.tokens import TokenRow

QUESTION = "How many tokens a second does a pretrained model play and learn with the defaults, against plain loops?"
METHODS: Sequence[Method] = ("rft", "dpo", "grpo")
Turn = tuple[tuple[int, ...], int]
"""The prompt's ids, and the number of sampled tokens."""


def play(config: RunConfig, checkpoint: Path, tasks: int, batch: int) -> tuple[float, list[Turn]]:
    """Play test tasks greedily, ``batch`` at a time in each worker. Returns the seconds and the turns."""
    with tempfile.TemporaryDirectory() as name, shared_workers(config):
        folder = Path(name)

        def jobs(kind: str, count: int, size: int) -> list[EvaluationJob]:
            parts = [range(count)[start : start + size] for start in range(0, count, size)]
            return [
                EvaluationJob(config, checkpoint, kind, index, part, None, "greedy", episodes=folder / kind)
                for index, part in enumerate(parts)
            ]

        for kind in ("warm", "timed"):
            (folder / kind).mkdir()
        list(run_jobs(evaluate_batch, jobs("warm", max(config.workers, 1), 1), config))  # workers load the model
        started = time.perf_counter()
        list(run_jobs(evaluate_batch, jobs("timed", tasks, batch), config))
        seconds = time.perf_counter() - started
        chat = make_chat(load_checkpoint(checkpoint), config)
        turns = [
            (chat.prompt_ids(node.state.messages), len(edge.action.token_ids))
            for episode in read_as(from_record, folder / "timed")
            for node in episode.nodes()
            for edge in node.edges
        ]
    return seconds, turns


@torch.no_grad()
def generate(checkpoint: Checkpoint, turns: Sequence[Turn], threads: int) -> float:
    """The seconds of one call of ``model.generate`` a turn."""
    torch.set_num_threads(threads)
    model, started = checkpoint.model.eval(), time.perf_counter()
    for prompt, count in turns:
        settings = GenerationConfig(do_sample=False, max_new_tokens=count, min_new_tokens=count, pad_token_id=0)
        ids = torch.tensor([list(prompt)])
        model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=settings)
    return time.perf_counter() - started


def llama_cpp(gguf: Path, turns: Sequence[Turn], threads: int) -> float:
    """The seconds in which llama.cpp samples turns."""
    from llama_cpp import Llama

    model = Llama(str(gguf), n_ctx=2048, n_threads=threads, n_threads_batch=threads, verbose=False)
    started = time.perf_counter()
    for prompt, count in turns:
        for _ in islice(model.generate(list(prompt), temp=0.0), count):
            pass
    return time.perf_counter() - started


def rows_of(config: RunConfig, run: Run, method: Method, folder: Path, count: int) -> list[Any]:
    """The first rows of a method on the run's trees, in the order of their tasks."""
    checkpoint = load_checkpoint(run.checkpoints / "warm")
    job = TrainJob(config, run.checkpoints / "warm", method, run.trees, run.collections(), folder / method)
    return list(islice(policy_training_rows(job, make_chat(checkpoint, job.config)), count))


def length(row: Any) -> int:
    """The tokens of a row of any method; those of both sides of a pair."""
    if hasattr(row, "chosen"):
        return 2 * len(row.context_ids) + len(row.chosen.token_ids) + len(row.rejected.token_ids)
    return len(row.token_ids) if hasattr(row, "token_ids") else len(row.prompt_ids) + len(row.completion_ids)


def learn(config: RunConfig, run: Run, method: Method, rows: Sequence[Any], threads: int, whole: bool) -> float:
    """Train an adapter for one pass over the rows; over whole rows in float32. Returns the seconds of its steps."""
    torch.set_num_threads(threads)
    saving = packed._SAVING
    packed._SAVING = 0.0 if whole else saving  # packs never cost so little
    checkpoint = load_checkpoint(run.checkpoints / "warm")
    model = with_adapter(checkpoint.model, config.policy.lora, 0)
    times: list[float] = []
    hooks: Hooks = {"on_progress": lambda done, total: times.append(time.perf_counter())}
    precision = "float32" if whole else config.precision(config.policy)
    settings: Mapping[str, Any] = {"batch_size": 8, "epochs": 1, "log_every": 1, "precision": precision}
    try:
        if method == "rft":
            train_sft(model, checkpoint.tokenizer, rows, SFTConfig(**settings), **hooks)
        elif method == "dpo":
            train_dpo(model, checkpoint.tokenizer, rows, DPOConfig(**settings), **hooks)
        else:
            grpo = GRPOConfig(**settings, packed=not whole)
            train_grpo(model, checkpoint.tokenizer, rows, grpo, temperature=config.policy.temperature, **hooks)
    finally:
        packed._SAVING = saving
    return times[-1] - times[0]


def fit(config: RunConfig, run: Run, rows: Sequence[TokenRow], threads: int, whole: bool) -> float:
    """Fit a new value head to rows. Returns the seconds."""
    torch.set_num_threads(threads)
    checkpoint = load_checkpoint(run.checkpoints / "warm")
    started = time.perf_counter()
    with patch.object(value, "why_unpackable", lambda model: "is to read whole rows") if whole else nullcontext():
        fit_value(checkpoint.model, value_head(checkpoint, config), rows, ValueConfig())
    return time.perf_counter() - started


def main() -> None:
    options = starting(__doc__, "pretrained")
    options.add_argument("--seed", type=int, default=0, help="the run's seed")
    options.add_argument("--tasks", type=int, default=10, help="episodes")
    options.add_argument("--rows", type=int, default=32, help="rows of a method, in batches of 8")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--trees", type=int, default=10, help="trees whose states the value head is fitted to")
    options.add_argument("--gguf", type=Path, help="a GGUF file of the base model")
    options.add_argument("--only", nargs="+", default=["play", *METHODS, "value"])
    arguments = options.parse_args()
    checkpoint = start_of(arguments.runs, arguments.seed)
    run = Run.open(checkpoint.parents[1])
    stored = replace(run.config, workers=0, threads=0)
    config, told = fit_to_machine(stored, checkpoint)
    print(told, flush=True)
    threads = training_threads(config, checkpoint)

    def played(number: int) -> Figures:
        tasks = arguments.tasks
        size = -(-tasks // config.workers)
        ours, turns = play(config, checkpoint, tasks, size)
        single = replace(config, workers=1, threads=1, policy=replace(config.policy, dtype="float32"))
        alone, _ = play(single, checkpoint, tasks, 1)
        plain = generate(load_checkpoint(checkpoint), turns, threads)
        tokens = sum(count for _, count in turns)
        seconds = {"defaults": ours, "one thread": alone, "generate": plain}
        if "vLLM" in players:
            torch.set_num_threads(threads)
            served = replace(config, workers=1, threads=threads, policy=replace(config.policy, generator="vllm"))
            seconds["vLLM"], _ = play(served, checkpoint, tasks, tasks)
        if "llama.cpp" in players:
            seconds["llama.cpp"] = llama_cpp(arguments.gguf, turns, threads)
        return {
            f"play, {arm}": {"tokens / s": tokens / each, "ratio": each / ours, "seconds": each}
            for arm, each in seconds.items()
        }

    def learnt(method: Method, rows: Sequence[Any], number: int) -> Figures:
        tokens = sum(map(length, rows))
        ours = learn(config, run, method, rows, threads, whole=False)
        plain = learn(config, run, method, rows, 1, whole=True)
        return {
            f"{method}, {arm}": {"tokens / s": tokens / each, "ratio": each / ours, "seconds": each}
            for arm, each in (("defaults", ours), ("one thread, whole rows", plain))
        }

    def fitted(rows: Sequence[TokenRow], number: int) -> Figures:
        tokens = sum(len(row.token_ids) for row in rows)
        ours, plain = (fit(config, run, rows, count, whole) for count, whole in ((threads, False), (1, True)))
        return {
            f"value, {arm}": {"tokens / s": tokens / each, "ratio": each / ours, "seconds": each}
            for arm, each in (("defaults", ours), ("one thread, whole rows", plain))
        }

    players = ["defaults", "one thread", "generate"]
    players += ["vLLM"] if find_spec("vllm") else []
    players += ["llama.cpp"] if find_spec("llama_cpp") and arguments.gguf else []
    with record_of(arguments, QUESTION) as record:
        digest = options_digest(arguments, "runs", "gguf", "trees")
        if "play" in arguments.only:
            arms = [f"play, {arm}" for arm in players]
            add_rounds(record, arguments.rounds, digest, arms, played)
        for method in METHODS:
            if method in arguments.only:
                with tempfile.TemporaryDirectory() as name:
                    rows = rows_of(config, run, method, Path(name), arguments.rows)
                arms = [f"{method}, {arm}" for arm in ("defaults", "one thread, whole rows")]
                add_rounds(record, arguments.rounds, digest, arms, partial(learnt, method, rows))
        if "value" in arguments.only:
            trees = islice(read_trees(run.trees), arguments.trees)
            rows = sample_value_rows(trees, config, value_head(load_checkpoint(checkpoint), config).reward_range)
            arms = [f"value, {arm}" for arm in ("defaults", "one thread, whole rows")]
            add_rounds(record, arguments.rounds, digest, arms, partial(fitted, [r for r in rows if r.value_positions]))


if __name__ == "__main__":
    main()
