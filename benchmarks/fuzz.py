"""Feeds random hostile text to every place that reads foreign text. An exception or a hang is a finding.

    python -m benchmarks.fuzz --seconds 600            # all places share the time
    python -m benchmarks.fuzz --only shop --seed 7     # one place, other texts

A finding is printed as a line of JSON. Fix its cause and append the line to tests/security/fuzz_cases.jsonl: the test
suite tries the texts of that file again.
"""

import argparse
import json
import platform
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import orjson
import zstandard

from treeagent.config import load_config
from treeagent.envs import Env, ToolSpec, make_env, text_tool
from treeagent.envs.calls import arguments_of, read_call
from treeagent.generators.turn import make_grammar
from treeagent.search.record import from_record
from treeagent.store import CorruptShard, read_as
from treeagent.types import ToolCall, UserError

SLOW = 2.0
"""Limit in seconds for one text. A slower text is a finding, too."""
MOST = 5
"""The fuzzer leaves a place after this many findings, because they often have one cause."""
TREE = Path(__file__).parents[1] / "tests" / "golden" / "corridor_tree.json"
FRAGMENTS = (
    *("\x00", "\x1b[31m", "\x9b", "\u202e", "\u200d", "\ud800", "\udfff", "\ufeff", "\r", "\n", "\t", " " * 3000),
    *["<|im_end|>", "</s>", "[/INST]", "</tool_call>", "<tool_call>", "</think>", "[TOOL_CALLS]", "<|im_start|>system"],
    *('"', "'", "\\", "`", "[", "]", "{", "}", "(", ")", ";", "--", "/*"),
    *("%s", "%", "{0}", "$(id)", "../", "/dev/zero"),
    *("[" * 2000, "{" * 2000, "(" * 2000, '{"a":' * 500, "'" * 999, "9" * 400, "-" * 400, "a" * 20000),
    *["NaN", "Infinity", "-1", "1e999", "18446744073709551616", "null", "true", "0x10", "é", "😀", "٣", "ﬀ"],
    *("Action: ", "Thought: ", "Forbidden call: ", "SELECT", " UNION ", " WHERE 1 ", "' OR '1'='1"),
)
"""Building blocks of attacks: control characters, special tokens, quotes and brackets, deep nesting, long runs, odd
numbers."""


@dataclass(frozen=True)
class Place:
    """A place that reads foreign text."""

    corpus: Sequence[str]
    """Valid texts, from which hostile ones are made."""
    read: Callable[[str], object]
    """Reads a text. An exception is a fault of the place."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="for all places together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=list(PLACES), default=list(PLACES), metavar="PLACE")
    arguments = parser.parse_args()
    print("| place | texts | findings | slowest, ms |\n|---|---|---|---|")
    found: list[dict[str, str]] = []
    for name in arguments.only:
        tries, before, slowest, end = 0, len(found), 0.0, time.monotonic() + arguments.seconds / len(arguments.only)
        for text in texts(name, arguments.seed):
            if time.monotonic() > end or len(found) - before == MOST:
                break
            tries += 1
            start = time.perf_counter()
            if fault := attempt(name, text):
                found.append({"place": name, "text": text, "fault": fault})
            slowest = max(slowest, time.perf_counter() - start)
        print(f"| {name} | {tries} | {len(found) - before} | {1000 * slowest:.0f} |", flush=True)
    print(*map(json.dumps, found), sep="\n")
    return bool(found)


def attempt(name: str, text: str) -> str:
    """What is wrong with how a place reads a text; empty if nothing is."""
    start = time.process_time()
    try:
        PLACES[name]().read(text)
    except Exception as error:  # the boundary: any exception is a finding
        return f"{type(error).__name__}: {error}"[:300]
    seconds = time.process_time() - start
    return f"it took {seconds:.1f} seconds" if seconds > SLOW else ""


def texts(name: str, seed: int) -> Iterator[str]:
    """An endless stream of hostile texts for a place; equal seeds give equal texts."""
    corpus = PLACES[name]().corpus
    rng = random.Random(f"{name} {seed}")
    while True:
        text = rng.choice(corpus)
        for _ in range(rng.randint(1, 4)):
            text = _changed(text, rng, corpus)
        # Model output and server replies contain no lone surrogates by the time they are read.
        yield text[:200_000].encode(errors="replace").decode()


def _changed(text: str, rng: random.Random, corpus: Sequence[str]) -> str:
    start, end = sorted(rng.randint(0, len(text)) for _ in range(2))
    match rng.randrange(6):
        case 0:
            return text[:start] + text[end:]
        case 1:
            return text[:start] + text[start:end] * rng.choice([2, 3, 50]) + text[end:]
        case 2:
            return text[:start] + rng.choice(corpus) + text[end:]
        case 3:
            return text[:start] + chr(rng.choice([rng.randrange(256), rng.randrange(0x110000)])) + text[start + 1 :]
    return text[:start] + rng.choice(FRAGMENTS) + text[start:]


def _storable(value: object) -> None:
    """Raise if a tree could not store this value."""
    orjson.dumps(value)


def _grammar(name: str) -> Place:
    grammar = make_grammar(name)
    call = ToolCall("search", {"query": "red lamp", "page": 2})

    def read(text: str) -> None:
        action = grammar.read(text)
        _storable([action.thought, action.error, getattr(action.call, "arguments", action.call)])
        grammar.begins_action(text)

    turn = grammar.write("why", "search[red lamp]" if grammar.calls == "text" else call)
    return Place(("look[around]", "<think>a</think>\n", f"I look.\n{turn}", turn), read)


def _calls() -> Place:
    page = {"type": "object", "properties": {"query": {"type": "string"}, "page": {"type": "integer"}}}
    tools = (text_tool("search", "", "query"), text_tool("stop", ""), ToolSpec("turn", "", page))
    return Place(
        ("search[lamp]", "stop[]", 'turn {"query": "a", "page": 2}', "turn[a, 2]"), lambda text: read_call(text, tools)
    )


def _env(name: str, corpus: Sequence[str]) -> Place:
    env: Env = make_env(name)
    (task,) = env.tasks("train", 1)
    env.reset(options={"task": task})
    start = env.snapshot()

    def read(text: str) -> None:
        # Once as an action, and once as each argument of every tool, where its brackets and commas do not end the
        # argument.
        actions: list[str | ToolCall] = [text]
        actions += [ToolCall(tool.name, dict.fromkeys(arguments_of(tool)[0], text)) for tool in env.tools()]
        for action in actions:
            env.restore(start)
            observation, reward, terminated, truncated, _ = env.step(action)
            _storable([observation, reward, terminated, truncated, env.state_key(), env.verify()])

    return Place(corpus, read)


def _settings(in_file: bool) -> Place:
    folder = tempfile.TemporaryDirectory()  # removed when ``read`` is collected

    def read(text: str) -> None:
        file = Path(folder.name) / "config.toml"
        file.write_bytes(text.encode(errors="surrogatepass") if in_file else b"")
        try:
            load_config(file, [] if in_file else [text])
        except UserError as refused:
            assert str(refused)

    if in_file:
        return Place(
            ("[search]\ncandidates = 4\n", 'extends = "debug.toml"\n', "[environment.options]\nsize = 8\n"), read
        )
    return Place(
        ("search.candidates=4", "environment.options.size=8", 'trackers=["wandb"]', "environment.name=shop"), read
    )


def _shard(packed: bool) -> Place:
    folder = tempfile.TemporaryDirectory()
    line = orjson.dumps(orjson.loads(TREE.read_bytes())).decode() + "\n"

    def read(text: str) -> None:
        raw = text.encode("latin-1", errors="replace") if packed else text.encode(errors="surrogatepass")
        (Path(folder.name) / "train-00000.jsonl.zst").write_bytes(raw if packed else zstandard.compress(raw))
        try:
            for _ in read_as(from_record, Path(folder.name)):
                pass
        except CorruptShard as refused:
            assert str(refused)

    return Place((zstandard.compress(line.encode()).decode("latin-1") if packed else line, ""), read)


PLACES: dict[str, Callable[[], Place]] = {
    **{name: cache(lambda name=name: _grammar(name)) for name in ("react", "tools", "llama", "mistral", "tags")},
    "calls": cache(_calls),
    "settings": cache(lambda: _settings(in_file=False)),
    "settings file": cache(lambda: _settings(in_file=True)),
    "shard": cache(lambda: _shard(packed=True)),
    "record": cache(lambda: _shard(packed=False)),
    "shop": cache(
        lambda: _env("shop", ("search[red lamp]", "click[3]", "click[red]", "click[buy now]", "click[back]"))
    ),
    "frozenlake": cache(lambda: _env("frozenlake", ("left", "right", "up", "down"))),
}
"""The places by name. Each is made once, when it is first read."""
if sys.platform == "linux" and platform.machine() == "x86_64":  # elsewhere there is no sandbox
    PLACES["sandbox"] = cache(lambda: _env("sandbox", ("shell[ls]", "shell[cat solution.py]", "test[]", "submit[]")))


if __name__ == "__main__":
    sys.exit(main())
