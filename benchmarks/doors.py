"""What ``treeagent proxy`` costs and gives: throughput against the bare generator, memory, and search behind it.

    .venv/bin/python -m benchmarks.doors

Clients in another process play conversations at once against the proxy, before a Qwen3 with random weights on one
thread. The bare generator then answers the same prompts, all conversations of a turn in one call. Seconds are CPU
seconds of the process that holds the model. Memory is measured after a tenth of the conversations and after all.
Search drives the agent of tests/contrib/doors/safe.py, against independent plays with as many tokens.
"""

import asyncio
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import torch

from benchmarks.command import Figures, add_rounds, memory, options_digest, record_of, repeating
from benchmarks.record import ROOT, Row
from treeagent.agent.checkpoint import Checkpoint, save_checkpoint
from treeagent.config import load_config
from treeagent.contrib.doors import proxied, searched
from treeagent.generators.base import SampleRequest
from treeagent.generators.chat import ChatFormat
from treeagent.generators.config import ScratchConfig
from treeagent.generators.local import LocalGenerator
from treeagent.generators.scratch import random_model, train_tokenizer
from treeagent.pipeline.trees import stored_trees
from treeagent.search.node import solved

QUESTION = "What does the proxy cost beside the generator, does its memory grow, and what does search behind it add?"
TEXTS = ("Thought: look for a red lamp\nAction: search[red lamp]", "page 1 of 3\n[B12] a lamp $9")


async def talk(address: str, first: int, count: int, turns: int, at_once: int) -> float:
    """Play conversations against the proxy, each with an outcome at its end. Returns the seconds that they took."""
    gate = asyncio.Semaphore(at_once)

    async def one(http: httpx.AsyncClient, number: int) -> None:
        url, messages = f"{address}/e/t{number}:1/v1", [{"role": "user", "content": f"task {number}: find a red lamp"}]
        async with gate:
            for turn in range(turns):
                answer = await http.post(f"{url}/chat/completions", json={"model": "policy", "messages": messages})
                said = answer.raise_for_status().json()["choices"][0]["message"]["content"] or ""
                messages += [{"role": "assistant", "content": said}, {"role": "user", "content": f"page {turn}"}]
            (await http.post(f"{url}/outcomes", json={"reward": 1.0})).raise_for_status()

    limits = httpx.Limits(max_connections=at_once)
    async with httpx.AsyncClient(timeout=None, limits=limits) as http:
        started = time.perf_counter()
        await asyncio.gather(*(one(http, number) for number in range(first, first + count)))
        return time.perf_counter() - started


def clients(address: str, first: int, count: int, turns: int, at_once: int) -> float:
    """``talk`` in another process, so that its CPU time is not counted here."""
    given = [address, first, count, turns, at_once]
    command = [sys.executable, "-m", "benchmarks.doors", "--talk", *map(str, given)]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def main() -> None:
    options = repeating(__doc__, "doors", rounds=3)
    options.add_argument("--widths", type=int, nargs="*", default=[64, 384], help="of the models")
    options.add_argument("--layers", type=int, default=6)
    options.add_argument("--at-once", type=int, default=100)
    options.add_argument("--turns", type=int, default=3)
    options.add_argument("--new", type=int, default=32, help="most tokens of an answer")
    options.add_argument("--conversations", type=int, default=10_000, help="for the memory")
    options.add_argument("--safes", type=int, default=12, help="for the search")
    arguments = options.parse_args()
    torch.set_num_threads(1)

    def checkpoint(width: int, folder: Path) -> tuple[Path, Any, Any]:
        shape = ScratchConfig(vocabulary=320, layers=arguments.layers, width=width, heads=4, context=2048)
        tokenizer = train_tokenizer(TEXTS, shape)
        model = random_model(tokenizer, shape, 0)
        return save_checkpoint(Checkpoint(model, tokenizer), folder / "policy"), model, tokenizer

    def throughput(width: int) -> dict[str, float]:
        with tempfile.TemporaryDirectory() as name:
            policy, model, tokenizer = checkpoint(width, Path(name))
            with proxied(policy, settings(), f"{name}/run", group=1) as address:
                clients(address, 0, 8, 1, 8)  # warm-up
                cpu = time.process_time()
                wall = clients(address, 100, arguments.at_once, arguments.turns, arguments.at_once)
                cpu = time.process_time() - cpu
            trees = [tree for tree in stored_trees(Path(name) / "run/trees") if int(tree.task.id[1:]) >= 100]
            said = [
                (tree.prompt_ids(path), node.edges[0]) for tree in trees for path, node in tree.walk() if node.edges
            ]
            prompts = sorted((prompt for prompt, _ in said), key=len)
            generator, chat = LocalGenerator(model, vocabulary=len(tokenizer)), ChatFormat(tokenizer)
            alone, alone_cpu = time.perf_counter(), time.process_time()
            for start in range(0, len(prompts), arguments.at_once):
                some, seeds = prompts[start : start + arguments.at_once], range(start, start + arguments.at_once)
                new, stop = arguments.new, chat.stop_id
                generator.sample(SampleRequest(some, 1, seeds[: len(some)], stop_id=stop, max_new_tokens=new))
            alone, alone_cpu = time.perf_counter() - alone, time.process_time() - alone_cpu
        tokens, bare = sum(len(edge.action.token_ids) for _, edge in said), generator.usage.generated_tokens
        return {
            "tokens / s": tokens / cpu,
            "bare, tokens / s": bare / alone_cpu,
            "ratio": tokens / cpu / (bare / alone_cpu),
            "ratio in wall-clock time": tokens / wall / (bare / alone),
            "ms beside the model, a turn": 1000 * (cpu - alone_cpu * tokens / bare) / len(said),
        }

    def settings(*more: str) -> Any:
        return load_config(None, [f"policy.max_new_tokens={arguments.new}", "policy.format=tools", *more])

    def growth() -> dict[str, float]:
        with tempfile.TemporaryDirectory() as name:
            policy, _, _ = checkpoint(32, Path(name))
            small = settings("policy.cache_bytes=16777216")  # the cache of prefixes grows to this size
            with proxied(policy, small, f"{name}/run", group=1) as address:
                tenth = arguments.conversations // 10
                clients(address, 0, tenth, 1, 32)
                early = memory("VmRSS")
                clients(address, tenth, arguments.conversations - tenth, 1, 32)
                return {"MiB after a tenth": early, "MiB after all": memory("VmRSS")}

    def opened(arm: str, method: str, seed: int, digest: str) -> Row:
        """How many safes of five digits the agent opens, with the tokens of about 21 turns for each."""
        from safe import agent
        from toy_llama import tokenizer

        plugged = ["environment.name=safe:Safe", "policy.generator=safe:Guesses", f"search.method={method}"]
        limits = ["environment.max_steps=8", "search.limits={generated_tokens=1400}", "workers=1", f"seed={seed}"]
        config = settings(*plugged, *limits, f"collect.tasks={arguments.safes}")
        with tempfile.TemporaryDirectory() as name:
            model = random_model(tokenizer(), ScratchConfig(vocabulary=320, layers=1, width=16, heads=2, context=64), 0)
            policy = save_checkpoint(Checkpoint(model, tokenizer()), Path(name) / "policy")
            searched(policy, config, f"{name}/run", agent)
            trees = list(stored_trees(Path(name) / "run/trees"))
        row = Row(arm, seed, digest, solved="".join(str(int(solved(tree))) for tree in trees))
        steps = sum(tree.budget.environment_steps for tree in trees)
        return replace(row, environment_steps=steps, generated_tokens=sum(t.budget.generated_tokens for t in trees))

    digest = options_digest(arguments, "widths", "conversations", "safes")
    with record_of(arguments, QUESTION) as record:
        for width in arguments.widths:

            def measured(number: int, width: int = width) -> Figures:
                return {f"width {width}": throughput(width)}

            add_rounds(record, arguments.rounds, digest, [f"width {width}"], measured)
        if arguments.conversations:
            arm = f"{arguments.conversations} conversations"
            add_rounds(record, 1, digest, [arm], lambda number: {arm: growth()})
        sys.path += [str(ROOT / "tests" / folder) for folder in ("contrib/doors", "generators")]
        for seed, method in product(range(arguments.rounds if arguments.safes else 0), ("mcts", "best_of_n")):
            if not record.has(arm := f"{arguments.safes} safes, {method}", seed, digest):
                record.add(row := opened(arm, method, seed, digest))
                print(f"{seed}: {arm}: {row.solved}, {row.generated_tokens:.0f} tokens", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--talk"]:
        print(asyncio.run(talk(sys.argv[2], *map(int, sys.argv[3:]))))
    else:
        main()
