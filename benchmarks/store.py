"""docs/files.md's choice of format: one forest written and read back in several, by size, time, memory and safety.

    .venv/bin/pip install msgpack
    .venv/bin/python -m benchmarks.store

The forest is grown by real searches of the shop under a scripted policy: the demonstrator's own steps, tokenised, with
log-probabilities and values in float32 as a model gives them. Writing and reading happen in processes of their own, one
after another, all formats before the next round. Seconds are the processor's, so that a busy machine tells the same,
medians over the rounds; memory is what Linux counts.
"""

import asyncio
import functools
import gzip
import math
import multiprocessing
import random
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import numpy as np
import orjson
import pyarrow
import pyarrow.parquet
import zstandard

from benchmarks.command import Figures, add_rounds, options_digest, record_of, repeating
from treeagent.generators.grammar import ReAct
from treeagent.search.record import from_record, to_record
from treeagent.store import CorruptShard, read_as, replacing, write_shard
from treeagent.types import Action, Estimate, Proposal, State, derive_seed

if TYPE_CHECKING:
    from treeagent.envs import EnvDynamics
    from treeagent.envs.shop import ShopEnv
    from treeagent.generators.chat import ChatFormat

QUESTION = "Which format keeps trees small, fast to read and safe from a crash?"
Record = dict[str, Any]
Write = Callable[[Path, int, Sequence[Record]], None]
"""(folder, index of the batch, its records): appends a finished batch, and returns when it is safely on disk."""
Read = Callable[[Path], Iterator[Record]]


@dataclass(frozen=True, slots=True)
class ScriptedModel:
    """Policy and value of a model that acts like the shop's demonstrator."""

    dynamics: "EnvDynamics"
    env: "ShopEnv"
    chat: "ChatFormat"
    noise: float = 0.5

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        return [self._draw(state, count, random.Random(seed)) for state, seed in zip(states, seeds, strict=True)]

    def _draw(self, state: State, count: int, rng: random.Random) -> Proposal:
        self.dynamics.stand_at(state)
        demonstrator = self.env.demonstrator(self.noise)
        assert demonstrator is not None
        texts = [ReAct().write(*demonstrator.act(rng)) for _ in range(count)]
        return Proposal(self.chat.context_ids(state.messages), tuple(self._sampled(text, rng) for text in texts))

    def _sampled(self, text: str, rng: random.Random) -> Action:
        ids = self.chat.encode_action(text)
        return ReAct().read(text, ids, tuple(_single(-math.exp(rng.gauss(-4, 2))) for _ in ids))

    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]:
        return [
            Estimate(
                _single(random.Random(derive_seed(state.messages[-1].content, state.key or "")).random()),
                self.chat.context_ids(state.messages),
            )
            for state in states
        ]


def _single(value: float) -> float:
    """The nearest number in float32."""
    return float(np.float32(value))


def grow(folder: Path, nodes: int, batch: int) -> list[Path]:
    """At least ``nodes`` searched states, a plain JSONL file for each batch of trees."""
    # Imported here, for the processes that measure have no use for any of it.
    from treeagent.envs import EnvDynamics, make_env
    from treeagent.envs.shop import ShopEnv
    from treeagent.generators.chat import ChatFormat
    from treeagent.generators.config import ScratchConfig
    from treeagent.generators.scratch import train_tokenizer
    from treeagent.search.config import SearchConfig
    from treeagent.search.limits import Limits
    from treeagent.search.mcts import Search
    from treeagent.stages.demonstrate import demonstrate

    env = make_env("shop")
    assert isinstance(env, ShopEnv)
    dynamics = EnvDynamics(env, max_steps=10)
    demonstrator = env.demonstrator(0.5)
    assert demonstrator is not None
    shown = demonstrate(dynamics, demonstrator, env.tasks("train", 300), seed=0, grammar=ReAct())
    texts = [message.content for tree in shown for node in tree.nodes() for message in node.state.messages[-2:]]
    model = ScriptedModel(dynamics, env, ChatFormat(train_tokenizer(texts, ScratchConfig())))
    search = Search(model, dynamics, SearchConfig(limits=Limits(simulations=32)), model)
    paths: list[Path] = []
    grown = edges = tokens = 0
    while grown < nodes:
        tasks = env.tasks("train", batch, start=batch * len(paths))
        trees = asyncio.run(search.run(tasks, [derive_seed(task.id) for task in tasks]))
        actions = [edge.action for tree in trees for node in tree.nodes() for edge in node.edges]
        grown += sum(1 for tree in trees for _ in tree.nodes())
        edges += len(actions)
        tokens += sum(len(action.token_ids) for action in actions)
        paths.append(folder / f"batch-{len(paths):05d}.jsonl")
        paths[-1].write_bytes(b"".join(map(_json_line, map(to_record, trees))))
    print(f"{len(paths) * batch:,} trees, {grown:,} nodes, {edges:,} edges, {tokens:,} sampled tokens\n", flush=True)
    return paths


def _json_line(record: Record) -> bytes:
    return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY)


def _loads(lines: Iterable[bytes]) -> Iterator[Record]:
    return map(orjson.loads, lines)


def write_store(folder: Path, index: int, records: Sequence[Record]) -> None:
    write_shard(folder, "trees", index, records)


def write_zstd(folder: Path, index: int, records: Sequence[Record], *, level: int) -> None:
    compressor = zstandard.ZstdCompressor(level=level, write_checksum=True).compressobj()
    with replacing(folder / f"trees-{index:05d}.jsonl.zst") as file:
        for record in records:
            file.write(compressor.compress(_json_line(record)))
        file.write(compressor.flush())


def write_short_logprobs(folder: Path, index: int, records: Sequence[Record]) -> None:
    """The store's format, but for log-probabilities in the fewest digits that tell float32 numbers apart."""

    def short(edge: Record) -> Record:
        return {**edge, "logprobs": np.array(edge["logprobs"], np.float32)}

    shortened = (
        {**record, "nodes": [{**node, "edges": [short(edge) for edge in node["edges"]]} for node in record["nodes"]]}
        for record in records
    )
    write_zstd(folder, index, list(shortened), level=3)


def write_dictionary(folder: Path, index: int, records: Sequence[Record]) -> None:
    """A frame for each tree, so that each can be appended and read alone; the first batch trains the dictionary."""
    lines = list(map(_json_line, records))
    if index == 0:
        (folder / "dictionary").write_bytes(zstandard.train_dictionary(112_640, [*lines]).as_bytes())
    trained = zstandard.ZstdCompressionDict((folder / "dictionary").read_bytes())
    compressor = zstandard.ZstdCompressor(level=3, write_checksum=True, dict_data=trained)
    with replacing(folder / f"trees-{index:05d}.zst") as file:
        for line in lines:
            file.write(compressor.compress(line))


def read_dictionary(folder: Path) -> Iterator[Record]:
    trained = zstandard.ZstdCompressionDict((folder / "dictionary").read_bytes())
    decompressor = zstandard.ZstdDecompressor(dict_data=trained)
    for path in sorted(folder.glob("*.zst")):
        rest = path.read_bytes()
        while rest:
            frame = decompressor.decompressobj()
            line = frame.decompress(rest)
            if not frame.eof:
                raise EOFError(f"{path} ends inside a frame")
            rest = frame.unused_data
            yield orjson.loads(line)


def write_plain(folder: Path, index: int, records: Sequence[Record]) -> None:
    with replacing(folder / f"trees-{index:05d}.jsonl") as file:
        file.writelines(map(_json_line, records))


def read_plain(folder: Path) -> Iterator[Record]:
    for path in sorted(folder.glob("*.jsonl")):
        with path.open("rb") as file:
            yield from _loads(file)


def write_gzip(folder: Path, index: int, records: Sequence[Record]) -> None:
    with replacing(folder / f"trees-{index:05d}.jsonl.gz") as file, gzip.open(file, "wb", compresslevel=6) as packed:
        packed.writelines(map(_json_line, records))


def read_gzip(folder: Path) -> Iterator[Record]:
    for path in sorted(folder.glob("*.gz")):
        with gzip.open(path, "rb") as file:
            yield from _loads(file)


def write_msgpack(folder: Path, index: int, records: Sequence[Record]) -> None:
    compressor = zstandard.ZstdCompressor(level=3, write_checksum=True).compressobj()
    with replacing(folder / f"trees-{index:05d}.msgpack.zst") as file:
        for record in records:
            file.write(compressor.compress(msgpack.packb(record)))
        file.write(compressor.flush())


def read_msgpack(folder: Path) -> Iterator[Record]:
    for path in sorted(folder.glob("*.msgpack.zst")):
        frame, unpacker = zstandard.ZstdDecompressor().decompressobj(), msgpack.Unpacker()
        with path.open("rb") as file:
            while chunk := file.read(1 << 14):
                unpacker.feed(frame.decompress(chunk))
                yield from unpacker
        if not frame.eof:
            raise EOFError(f"{path} ends inside a frame")


def write_parquet(folder: Path, index: int, records: Sequence[Record], *, rows: Callable[..., list[Record]]) -> None:
    table = pyarrow.Table.from_pylist(rows(records))
    with replacing(folder / f"trees-{index:05d}.parquet") as file:
        pyarrow.parquet.write_table(table, file, compression="zstd")


def read_parquet(folder: Path, *, records: Callable[[Iterator[Record]], Iterator[Record]]) -> Iterator[Record]:
    for path in sorted(folder.glob("*.parquet")):
        with pyarrow.parquet.ParquetFile(path) as file:
            yield from records(row for batch in file.iter_batches(batch_size=64) for row in batch.to_pylist())


def json_rows(records: Sequence[Record]) -> list[Record]:
    return [
        {"task": record["task"]["id"], "seed": record["seed"], "record": _json_line(record).decode()}
        for record in records
    ]


def from_json_rows(rows: Iterator[Record]) -> Iterator[Record]:
    return _loads(row["record"] for row in rows)


def tree_rows(records: Sequence[Record]) -> list[Record]:
    """Nodes and edges as nested columns; what differs from task to task as JSON."""
    return [{**record, "task": _json_line(record["task"]).decode()} for record in records]


def from_tree_rows(rows: Iterator[Record]) -> Iterator[Record]:
    return ({**row, "task": orjson.loads(row["task"])} for row in rows)


def node_rows(records: Sequence[Record]) -> list[Record]:
    """A row for each node; what belongs to the tree is repeated, which Parquet's own dictionaries make cheap."""
    return [
        {"tree": _json_line({key: value for key, value in record.items() if key != "nodes"}).decode(), **node}
        for record in records
        for node in record["nodes"]
    ]


def from_node_rows(rows: Iterator[Record]) -> Iterator[Record]:
    for tree, nodes in groupby(rows, key=lambda row: str(row.pop("tree"))):
        yield {**orjson.loads(tree), "nodes": list(nodes)}


def write_sqlite(folder: Path, index: int, records: Sequence[Record], *, pack: Callable[[bytes], bytes]) -> None:
    connection = sqlite3.connect(folder / "trees.sqlite")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    with connection:
        connection.execute("CREATE TABLE IF NOT EXISTS trees (task TEXT, seed INTEGER, record BLOB)")
        rows = ((record["task"]["id"], record["seed"], pack(_json_line(record))) for record in records)
        connection.executemany("INSERT INTO trees VALUES (?, ?, ?)", rows)
    connection.close()


def read_sqlite(folder: Path, *, unpack: Callable[[bytes], bytes]) -> Iterator[Record]:
    connection = sqlite3.connect(folder / "trees.sqlite")
    yield from _loads(unpack(row) for (row,) in connection.execute("SELECT record FROM trees ORDER BY rowid"))
    connection.close()


@dataclass(frozen=True, slots=True)
class Format:
    write: Write
    read: Read
    tool: bool = False
    """Whether a command-line tool such as jq reads it without a program of one's own."""


READ_STORE = functools.partial(read_as, dict)
FORMATS = {
    "JSONL, zstd 3: the store": Format(write_store, READ_STORE, tool=True),
    "JSONL, zstd 1": Format(functools.partial(write_zstd, level=1), READ_STORE, tool=True),
    "JSONL, zstd 9": Format(functools.partial(write_zstd, level=9), READ_STORE, tool=True),
    "JSONL, zstd 3, log-probabilities in float32's digits": Format(write_short_logprobs, READ_STORE, tool=True),
    "JSONL, zstd 3, a frame a tree, trained dictionary": Format(write_dictionary, read_dictionary, tool=True),
    "JSONL": Format(write_plain, read_plain, tool=True),
    "JSONL, gzip 6": Format(write_gzip, read_gzip, tool=True),
    "MessagePack, zstd 3": Format(write_msgpack, read_msgpack),
    "Parquet, zstd, a row a tree, JSON column": Format(
        functools.partial(write_parquet, rows=json_rows), functools.partial(read_parquet, records=from_json_rows)
    ),
    "Parquet, zstd, a row a tree, nested columns": Format(
        functools.partial(write_parquet, rows=tree_rows), functools.partial(read_parquet, records=from_tree_rows)
    ),
    "Parquet, zstd, a row a node": Format(
        functools.partial(write_parquet, rows=node_rows), functools.partial(read_parquet, records=from_node_rows)
    ),
    "SQLite, WAL, JSON": Format(
        functools.partial(write_sqlite, pack=bytes), functools.partial(read_sqlite, unpack=bytes), tool=True
    ),
    "SQLite, WAL, JSON under zstd 3": Format(
        functools.partial(write_sqlite, pack=zstandard.ZstdCompressor(level=3).compress),
        functools.partial(read_sqlite, unpack=zstandard.ZstdDecompressor().decompress),
    ),
}


def write_seconds(name: str, folder: Path, batches: Sequence[Path]) -> float:
    """Of all batches; the records are in memory before each."""
    seconds = 0.0
    for index, path in enumerate(batches):
        records = list(_loads(path.read_bytes().splitlines()))
        started = time.process_time()
        FORMATS[name].write(folder, index, records)
        seconds += time.process_time() - started
    return seconds


def read_seconds(name: str, folder: Path, as_trees: bool) -> tuple[float, float]:
    """Seconds, and the MiB by which memory peaked over what it was before."""
    before = _memory("VmRSS")
    started = time.process_time()
    for record in FORMATS[name].read(folder):
        if as_trees:
            from_record(record)
    return time.process_time() - started, max(0.0, _memory("VmHWM") - before)


def _memory(kind: str) -> float:
    """MiB of this process. Not getrusage's peak, which a process inherits from the one that started it."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(kind)]
    return int(line.split()[1]) / 1024


def cut_short(name: str, folder: Path) -> dict[str, float]:
    """What reading gives once the last tenth of the newest file is lost."""
    newest = max((path for path in folder.iterdir() if path.name != "dictionary"), key=lambda path: path.name)
    newest.write_bytes(newest.read_bytes()[: newest.stat().st_size * 9 // 10])
    count, told = 0, False
    try:
        for _ in FORMATS[name].read(folder):
            count += 1
    except (CorruptShard, EOFError, ValueError, OSError, zstandard.ZstdError, sqlite3.DatabaseError):
        told = True
    return {"cut file is told": told, "trees read of it": count}


def alone(work: Callable[..., Any], *arguments: object) -> Any:
    """The result of a call in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def measure(name: str, folder: Path, batches: Sequence[Path], nodes: int, number: int) -> dict[str, float]:
    """One round of a format."""
    folder.mkdir()
    written = alone(write_seconds, name, folder, batches)
    size = sum(path.stat().st_size for path in folder.iterdir())
    records, memory = alone(read_seconds, name, folder, False)
    trees, _ = alone(read_seconds, name, folder, True)
    found = {
        "bytes a node": size / nodes,
        "write s": written,
        "read s, records": records,
        "read s, trees": trees,
        "extra MiB": memory,
    }
    return found | ({"read by a tool": FORMATS[name].tool, **cut_short(name, folder)} if number == 0 else {})


def main() -> None:
    options = repeating(__doc__, "store", rounds=3)
    options.add_argument("--nodes", type=int, default=100_000)
    options.add_argument("--batch", type=int, default=100, help="trees in a shard")
    asked = options.parse_args()
    with record_of(asked, QUESTION) as record, tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        batches = grow(folder, asked.nodes, asked.batch)
        nodes = sum(len(record["nodes"]) for path in batches for record in _loads(path.read_bytes().splitlines()))

        def round_of_all(number: int) -> Figures:
            return {
                name: measure(name, folder / f"{number}-{place}", batches, nodes, number)
                for place, name in enumerate(FORMATS)
            }

        add_rounds(record, asked.rounds, options_digest(asked), list(FORMATS), round_of_all)


if __name__ == "__main__":
    main()
