"""V(s) from the policy's own forward pass: what the value head reads, how accurate it is, and what it costs.

    .venv/bin/python -m benchmarks.quickstart --seeds 0 1 2  # trains the policies and grows the trees
    .venv/bin/python -m benchmarks.one_model --runs runs/store_short --seeds 0 1 2

A head is fitted, as in any run, to the trees of a run's first training tasks. ``views.signal`` measures it on the trees
of the tasks after them, and a search uses it on held-out tasks under one limit of generated tokens per task. The policy
is the same in all arms. "own copy" reads hidden states from a second copy of the model, as a run with an engine does.
The cost of an arm is measured in a process of its own, as CPU seconds and peak resident memory. The arms with an engine
need vLLM.
"""

import argparse
import asyncio
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.command import memory, options_digest, record_of, settings_of, start_of, starting
from benchmarks.methods import evaluate_arm
from benchmarks.record import Record, Row, digest
from treeagent.agent.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from treeagent.agent.policy import HeadValue
from treeagent.agent.value_head import LogprobHead, ValueHead
from treeagent.config import RunConfig
from treeagent.generators.config import CACHE_BYTES
from treeagent.generators.local import LocalGenerator
from treeagent.learners.config import ValueConfig
from treeagent.learners.value import fit_value
from treeagent.pipeline.build import env_dynamics, instances, load_actors, make_policy, tasks_at
from treeagent.pipeline.folder import COLLECTED, Run
from treeagent.pipeline.update import sample_value_rows
from treeagent.search.config import Limits
from treeagent.search.node import Tree
from treeagent.search.record import from_record
from treeagent.search.searcher import make_search
from treeagent.store import read_as
from treeagent.types import Value, derive_seed
from treeagent.views.signal import signal_figures, value_signal

QUESTION = "Does V(s) need hidden states, and a second model for them?"
HIDDEN = "hidden states"
LOGPROBS = "log-probabilities"
COPY = "hidden states, own copy"
ENGINE = {"vLLM, hidden states, own copy": HIDDEN, "vLLM, log-probabilities": LOGPROBS}
"""The arms that sample with vLLM, and what the head of each reads."""


def fit_head(checkpoint: Checkpoint, config: RunConfig, trees: Sequence[Tree], reads: str) -> tuple[ValueHead, float]:
    """Fit a new head. Returns it with the share of the variance of held-out returns that it explains."""
    returns, seed = config.environment.returns, derive_seed(config.seed, "value_head")
    width = checkpoint.model.config.get_text_config().hidden_size
    hidden = reads == HIDDEN
    head = ValueHead(width, returns, seed, middle=True) if hidden else LogprobHead(reward_range=returns, seed=seed)
    fit = fit_value(checkpoint.model, head, sample_value_rows(trees, config, returns), ValueConfig(seed=config.seed))
    return head, fit.explained_variance


def signal_of(value: HeadValue, trees: Sequence[Tree]) -> dict[str, float]:
    """The signal of V on trees. Replaces the values stored in the trees."""
    for tree in trees:
        nodes = [node for _, node in tree.walk()]
        estimates = asyncio.run(value.estimate([node.state for node in nodes]))
        for node, each in zip(nodes, estimates, strict=True):
            node.value = each.value
    return signal_figures(value_signal(trees))


def search_cost(config: RunConfig, policy: Path, own_copy: bool, tasks: int) -> dict[str, float]:
    """The cost of searching training tasks in this process, which does nothing else."""
    torch.set_num_threads(1)
    actors, full_policy = load_actors(policy, config)
    value: Value | None = actors.value
    readers = {id(full_policy.generator): full_policy.generator.usage}
    if isinstance(value, HeadValue):
        if own_copy:
            generator = LocalGenerator(
                load_checkpoint(policy).model, cache_bytes=config.policy.cache_bytes or CACHE_BYTES
            )
            value = HeadValue(generator, value.chat, value.head)
        readers[id(value.generator)] = value.generator.usage
    dynamics = env_dynamics(instances(config), config, "cost")
    grower = make_search(actors.sampling, dynamics, config.search, value)
    began = time.process_time()
    trees = asyncio.run(grower.run(tasks_at(dynamics.env, "train", range(tasks)), list(range(tasks))))
    seconds = time.process_time() - began
    generated = sum(tree.budget.generated_tokens for tree in trees)
    return {
        "CPU s / 1,000 tokens": 1000 * seconds / generated,
        "read tokens / generated token": sum(usage.encoded_tokens for usage in readers.values()) / generated,
        "MiB": memory("VmHWM"),
    }


@contextmanager
def saved(checkpoint: Checkpoint, head: ValueHead) -> Iterator[Path]:
    with TemporaryDirectory() as folder:
        yield save_checkpoint(Checkpoint(checkpoint.model, checkpoint.tokenizer, head), Path(folder) / "policy")


def measure(record: Record, arguments: argparse.Namespace, seed: int) -> None:
    """Record every arm of one seed."""
    run = Run.open(arguments.runs / f"seed{seed}")
    config = replace(
        run.config, workers=1, search=replace(run.config.search, limits=Limits(generated_tokens=arguments.tokens))
    )
    settings_hash = digest({"options": options_digest(arguments, "runs"), "run": settings_of(config)})
    checkpoint = load_checkpoint(start_of(arguments.runs, seed, "base"))
    trees = list(islice(read_as(from_record, run.trees, COLLECTED), arguments.trees + arguments.judged))
    heads = dict[str, ValueHead]()
    for arm in (HIDDEN, LOGPROBS):
        heads[arm], explained = fit_head(checkpoint, config, trees[: arguments.trees], arm)
        if record.has(arm, seed, settings_hash):
            continue
        policy = make_policy(checkpoint, config)
        figures = signal_of(HeadValue(policy.generator, policy.chat, heads[arm]), trees[arguments.trees :])
        figures["explained_variance"] = explained
        with saved(checkpoint, heads[arm]) as folder:
            row = evaluate_arm(config, folder, "mcts", arm, seed, settings_hash, arguments.tasks)
        record.add(replace(row, figures=figures))
        listed = ", ".join(f"{name} {figure:.3f}" for name, figure in figures.items())
        print(f"seed {seed} {arm}: {100 * row.success:.1f} %, {listed}", flush=True)
    read_by = {HIDDEN: HIDDEN, LOGPROBS: LOGPROBS, COPY: HIDDEN} | (ENGINE if find_spec("vllm") else {})
    for arm, reads in read_by.items():
        name = f"cost, {arm}"
        if record.has(name, seed, settings_hash):
            continue
        settings = replace(config, policy=replace(config.policy, generator="vllm")) if arm in ENGINE else config
        with (
            saved(checkpoint, heads[reads]) as folder,
            ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool,
        ):
            figures = pool.submit(search_cost, settings, folder, arm == COPY, arguments.cost_tasks).result()
        record.add(Row(name, seed, settings_hash, figures=figures))
        print(f"seed {seed} {name}: {figures}", flush=True)


def main() -> None:
    options = starting(__doc__, "one_model")
    options.add_argument("--trees", type=int, default=300, help="of training tasks, to fit heads to")
    options.add_argument("--judged", type=int, default=100, help="trees of the tasks after them, to judge V on")
    options.add_argument("--tokens", type=int, default=800, help="generated tokens a task")
    options.add_argument("--tasks", type=int, default=200, help="held-out tasks of each seed")
    options.add_argument("--cost-tasks", type=int, default=20, help="training tasks whose search is timed")
    arguments = options.parse_args()
    with record_of(arguments, QUESTION, generated_tokens=arguments.tokens) as record:
        for seed in arguments.seeds:
            measure(record, arguments, seed)


if __name__ == "__main__":
    main()
