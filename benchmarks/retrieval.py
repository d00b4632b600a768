"""docs' choice of a vector store for the replay buffer: embedded stores compared on real transitions of the shop.

    python -m venv /tmp/stores
    /tmp/stores/bin/pip install -e . chromadb faiss-cpu hnswlib lancedb pysqlite3-binary sqlite-vec usearch
    /tmp/stores/bin/python -m benchmarks.retrieval --rows 100000

Rows are (state, action) embeddings with their transition as JSON, added in batches that are durable before the next one
begins. Libraries that hold an index alone keep rows and vectors in SQLite beside it, as a program that uses them must;
their index is written whole at the end. Every store is filled, queried, killed and read in processes of its own.
"""

import json
import multiprocessing
import os
import resource
import shutil
import signal
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.command import add_rounds, options_digest, record_of, repeating
from treeagent.world_model.encoder import Vectors

QUESTION = "Which embedded store finds similar steps fast, and survives a kill?"
K = 5
QUERIES = 200
SPAWN = multiprocessing.get_context("spawn")
Figures = dict[str, Any]


class Store(Protocol):
    """What the replay buffer asks of a store."""

    def add(self, first: int, vectors: Vectors, texts: Sequence[str]) -> None:
        """Rows ``first`` and on; safely on disk on return."""
        ...

    def search(self, queries: Vectors, k: int) -> list[list[int]]: ...

    def count(self) -> int: ...

    def save(self) -> None: ...


class Rows:
    """Texts and vectors in SQLite: crash-safe, shared by processes."""

    def __init__(self, folder: Path, sqlite: Any = sqlite3) -> None:
        self.database = sqlite.connect(str(folder / "rows.sqlite"), isolation_level=None)
        self.database.execute("PRAGMA journal_mode = WAL")
        self.database.execute("CREATE TABLE IF NOT EXISTS row (id INTEGER PRIMARY KEY, text TEXT, vector BLOB)")

    def add(self, first: int, vectors: Vectors, texts: Sequence[str]) -> None:
        self.database.execute("BEGIN")
        rows = enumerate(zip(texts, vectors, strict=True), start=first)
        self.database.executemany(
            "INSERT INTO row VALUES (?, ?, ?)", ((place, text, vector.tobytes()) for place, (text, vector) in rows)
        )
        self.database.execute("COMMIT")

    def vectors(self, after: int = -1) -> Iterator[tuple[list[int], Vectors]]:
        found = self.database.execute("SELECT id, vector FROM row WHERE id > ? ORDER BY id", (after,))
        while rows := found.fetchmany(10_000):
            yield (
                [row[0] for row in rows],
                np.frombuffer(b"".join(row[1] for row in rows), np.float32).reshape(len(rows), -1),
            )

    def count(self) -> int:
        return int(self.database.execute("SELECT count(*) FROM row").fetchone()[0])

    def save(self) -> None:
        return None


class Matrix(Rows):
    """SQLite and one matrix product; the matrix follows the table."""

    def __init__(self, folder: Path, dimension: int) -> None:
        super().__init__(folder)
        self.matrix = np.zeros((0, dimension), np.float32)

    def search(self, queries: Vectors, k: int) -> list[list[int]]:
        new = [vectors for _, vectors in self.vectors(after=len(self.matrix) - 1)]
        if new:
            self.matrix = np.concatenate([self.matrix, *new])
        scores = queries @ self.matrix.T
        best = np.argpartition(scores, -k, axis=1)[:, -k:]
        return [list(map(int, row)) for row in best]


class SqliteVec(Rows):
    """On an SQLite of its own, since not every Python's can load extensions."""

    def __init__(self, folder: Path, dimension: int) -> None:
        import pysqlite3
        import sqlite_vec

        super().__init__(folder, pysqlite3)
        self.database.enable_load_extension(True)
        sqlite_vec.load(self.database)
        self.database.execute(
            f"CREATE VIRTUAL TABLE IF NOT EXISTS near USING vec0(id INTEGER PRIMARY KEY, v float[{dimension}])"
        )

    def add(self, first: int, vectors: Vectors, texts: Sequence[str]) -> None:
        self.database.execute("BEGIN")
        places = range(first, first + len(texts))
        self.database.executemany("INSERT INTO row VALUES (?, ?, NULL)", zip(places, texts, strict=True))
        self.database.executemany(
            "INSERT INTO near VALUES (?, ?)",
            ((place, vector.tobytes()) for place, vector in zip(places, vectors, strict=True)),
        )
        self.database.execute("COMMIT")

    def search(self, queries: Vectors, k: int) -> list[list[int]]:
        ask = "SELECT id FROM near WHERE v MATCH ? AND k = ?"
        return [[row[0] for row in self.database.execute(ask, (query.tobytes(), k))] for query in queries]


class Lance:
    def __init__(self, folder: Path, dimension: int) -> None:
        import lancedb
        import pyarrow

        self.arrow = pyarrow
        self.schema = pyarrow.schema(
            [("id", pyarrow.int64()), ("text", pyarrow.string()), ("v", pyarrow.list_(pyarrow.float32(), dimension))]
        )
        self.table = lancedb.connect(folder).create_table("row", schema=self.schema, exist_ok=True)

    def add(self, first: int, vectors: Vectors, texts: Sequence[str]) -> None:
        column = self.arrow.FixedSizeListArray.from_arrays(self.arrow.array(vectors.ravel()), vectors.shape[1])
        places = list(range(first, first + len(texts)))
        self.table.add(self.arrow.table([places, list(texts), column], schema=self.schema))

    def search(self, queries: Vectors, k: int) -> list[list[int]]:
        return [
            self.table.search(query).metric("dot").select(["id", "_distance"]).limit(k).to_arrow()["id"].to_pylist()
            for query in queries
        ]

    def count(self) -> int:
        return int(self.table.count_rows())

    def save(self) -> None:
        self.table.optimize()


class LanceIndex(Lance):
    """With an approximate index, made at the end."""

    def save(self) -> None:
        self.table.optimize()
        self.table.create_index(metric="dot", vector_column_name="v", index_type="IVF_HNSW_SQ")


class Usearch(Rows):
    def __init__(self, folder: Path, dimension: int) -> None:
        from usearch.index import Index

        super().__init__(folder)
        self.path = folder / "index.usearch"
        self.index = Index(ndim=dimension, metric="ip", dtype="f16")
        if self.path.exists():
            self.index.view(str(self.path))

    def add(self, first: int, vectors: Vectors, texts: Sequence[str]) -> None:
        super().add(first, vectors, texts)
        self.index.add(np.arange(first, first + len(texts)), vectors, threads=1)

    def search(self, queries: Vectors, k: int) -> list[list[int]]:
        found = self.index.search(queries, k, threads=1)
        return [list(map(int, row)) for row in np.atleast_2d(found.keys)]

    def save(self) -> None:
        self.index.save(str(self.path))


class Hnswlib(Rows):
    def __init__(self, folder: Path, dimension: int) -> None:
        import hnswlib

        super().__init__(folder)
        self.path = folder / "index.hnsw"
        self.index = hnswlib.Index(space="ip", dim=dimension)
        if self.path.exists():
            self.index.load_index(str(self.path))
        else:
            self.index.init_index(max_elements=200_000, ef_construction=128, M=16)
        self.index.set_ef(64)
        self.index.set_num_threads(1)

    def add(self, first: int, vectors: Vectors, texts: Sequence[str]) -> None:
        super().add(first, vectors, texts)
        self.index.add_items(vectors, np.arange(first, first + len(texts)), num_threads=1)

    def search(self, queries: Vectors, k: int) -> list[list[int]]:
        labels, _ = self.index.knn_query(queries, k=k, num_threads=1)
        return [list(map(int, row)) for row in labels]

    def save(self) -> None:
        self.index.save_index(str(self.path))


class Faiss(Rows):
    def __init__(self, folder: Path, dimension: int) -> None:
        import faiss

        super().__init__(folder)
        faiss.omp_set_num_threads(1)
        self.faiss, self.path = faiss, folder / "index.faiss"
        self.index = faiss.read_index(str(self.path)) if self.path.exists() else faiss.IndexFlatIP(dimension)

    def add(self, first: int, vectors: Vectors, texts: Sequence[str]) -> None:
        super().add(first, vectors, texts)
        self.index.add(vectors)

    def search(self, queries: Vectors, k: int) -> list[list[int]]:
        return [list(map(int, row)) for row in self.index.search(queries, k)[1]]

    def save(self) -> None:
        self.faiss.write_index(self.index, str(self.path))


class Chroma:
    def __init__(self, folder: Path, dimension: int) -> None:
        import chromadb
        from chromadb.config import Settings

        client = chromadb.PersistentClient(str(folder), settings=Settings(anonymized_telemetry=False))
        self.rows = client.get_or_create_collection(
            "row", configuration={"hnsw": {"space": "ip"}}, embedding_function=None
        )

    def add(self, first: int, vectors: Vectors, texts: Sequence[str]) -> None:
        places = [str(place) for place in range(first, first + len(texts))]
        self.rows.add(ids=places, embeddings=vectors, documents=list(texts))

    def search(self, queries: Vectors, k: int) -> list[list[int]]:
        found = self.rows.query(query_embeddings=queries, n_results=k, include=[])
        return [list(map(int, row)) for row in found["ids"]]

    def count(self) -> int:
        return int(self.rows.count())

    def save(self) -> None:
        return None


STORES: dict[str, Any] = {
    "SQLite + matrix product": Matrix,
    "sqlite-vec": SqliteVec,
    "LanceDB, exact": Lance,
    "LanceDB, IVF_HNSW_SQ": LanceIndex,
    "usearch + SQLite": Usearch,
    "hnswlib + SQLite": Hnswlib,
    "faiss, exact + SQLite": Faiss,
    "chromadb": Chroma,
}


def make_rows(folder: Path, rows: int) -> None:
    """Distinct transitions of noisy demonstrations, embedded: ``vectors.npy``, ``queries.npy`` and ``texts.json``."""
    from treeagent.envs import EnvDynamics, make_env
    from treeagent.generators.grammar import ReAct
    from treeagent.stages.demonstrate import demonstrate
    from treeagent.views.transitions import transitions
    from treeagent.world_model.encoder import LexicalEncoder
    from treeagent.world_model.replay import embed

    env = make_env("shop", {"difficulty": 1, "page_size": 3, "labels": "number"})
    demonstrator = env.demonstrator(0.6)
    assert demonstrator is not None
    dynamics, found, start = EnvDynamics(env, max_steps=10), dict[str, Any](), 0
    while len(found) < rows + QUERIES:
        tasks = env.tasks("train", 1000)
        for tree in demonstrate(dynamics, demonstrator, tasks, seed=start, grammar=ReAct()):
            found.update((one.digest(), one) for one in transitions(tree))
        start += 1
    kept = list(found.values())
    np.random.default_rng(0).shuffle(kept)
    kept = kept[: rows + QUERIES]
    vectors = embed(LexicalEncoder(), [(one.history, one.action) for one in kept])
    np.save(folder / "vectors.npy", vectors[:rows])
    np.save(folder / "queries.npy", vectors[rows:])
    (folder / "texts.json").write_text(json.dumps([json.dumps(one.to_record()) for one in kept[:rows]]))


def load_rows(folder: Path) -> tuple[Vectors, Vectors, list[str]]:
    texts: list[str] = json.loads((folder / "texts.json").read_text())
    return np.load(folder / "vectors.npy"), np.load(folder / "queries.npy"), texts


def fill(name: str, data: Path, folder: Path, batch: int) -> Figures:
    """Rows a second, the last tenth's apart; disk."""
    vectors, _, texts = load_rows(data)
    store: Store = STORES[name](folder, vectors.shape[1])
    seconds = []
    for first in range(0, len(texts), batch):
        started = time.perf_counter()
        store.add(first, vectors[first : first + batch], texts[first : first + batch])
        seconds.append(time.perf_counter() - started)
    started = time.perf_counter()
    store.save()
    saved = time.perf_counter() - started
    last = seconds[-len(seconds) // 10 :]
    return {
        "insert": len(texts) / (sum(seconds) + saved),
        "insert_ms": 1000 * statistics.mean(last),
        "disk": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
    }


def ask(name: str, data: Path, folder: Path) -> Figures:
    """Seconds to the first answer, then queries one by one and all at once; recall by similarity, since many rows tie.
    Memory is what opening the store and asking adds."""
    queries = np.load(data / "queries.npy")
    before = _resident()
    started = time.perf_counter()
    store: Store = STORES[name](folder, queries.shape[1])
    store.search(queries[:1], K)
    opened = time.perf_counter() - started
    single = []
    for query in queries:
        started = time.perf_counter()
        store.search(query[None], K)
        single.append(time.perf_counter() - started)
    started = time.perf_counter()
    found = store.search(queries, K)
    together = (time.perf_counter() - started) / len(queries)
    memory = _resident() - before
    vectors = np.load(data / "vectors.npy")
    exact = np.sort(queries @ vectors.T, axis=1)[:, -K]
    hits = [
        float(np.mean(vectors[places] @ query >= least - 1e-3)) if places else 0.0
        for query, least, places in zip(queries, exact, found, strict=True)
    ]
    return {
        "open_s": opened,
        "query_ms": 1000 * statistics.median(single),
        "batch_ms": 1000 * together,
        "recall": statistics.mean(hits),
        "memory": memory,
    }


def _resident() -> int:
    """Bytes in memory now, as Linux counts."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def keep_adding(name: str, data: Path, folder: Path, batch: int, told: Connection) -> None:
    """Tell after every durable batch how many rows there are, until killed."""
    vectors, _, texts = load_rows(data)
    store: Store = STORES[name](folder, vectors.shape[1])
    for first in range(0, len(texts), batch):
        store.add(first, vectors[first : first + batch], texts[first : first + batch])
        told.send(min(first + batch, len(texts)))


def read_once(name: str, data: Path, folder: Path) -> tuple[int, int]:
    """Rows counted, rows found near a query."""
    vectors, queries, _ = load_rows(data)
    store: Store = STORES[name](folder, vectors.shape[1])
    counted = store.count()
    return counted, sum(place >= 0 for place in store.search(queries[:1], K)[0])


def crash(name: str, data: Path, folder: Path, batch: int) -> Figures:
    """Another process reads while one writes; the writer is killed, and what it had acknowledged must be there."""
    reader, writer = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=keep_adding, args=(name, data, folder, batch, writer))
    process.start()
    acknowledged = reader.recv()
    beside = _attempt(name, data, folder)
    ends = time.monotonic() + 1.0
    while time.monotonic() < ends and reader.poll(0.2):
        acknowledged = reader.recv()
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    while reader.poll(0):
        try:
            acknowledged = reader.recv()
        except EOFError:
            break
    after = _attempt(name, data, folder)
    kept = "kept" if isinstance(after, tuple) and after[0] >= acknowledged else "LOST"
    searchable = "searchable" if isinstance(after, tuple) and after[1] == K else "index lost"
    return {
        "reader": "yes" if isinstance(beside, tuple) and beside[0] and beside[1] == K else f"no ({beside})",
        "crash": f"{kept}, {searchable}" if isinstance(after, tuple) else f"unreadable ({after})",
    }


def _attempt(name: str, data: Path, folder: Path) -> tuple[int, int] | str:
    try:
        counted, found = apart(read_once, name, data, folder)
        return counted, found
    except Exception as error:  # whatever a stranger's store raises is the finding
        return type(error).__name__


def apart(job: Any, *arguments: object) -> Any:
    """Do a job in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=SPAWN) as pool:
        return pool.submit(job, *arguments).result()


def main() -> None:
    options = repeating(__doc__, "retrieval", rounds=1)
    options.add_argument("--rows", type=int, default=100_000)
    options.add_argument("--batch", type=int, default=256, help="rows made durable at once")
    options.add_argument("--stores", nargs="+", choices=list(STORES), default=list(STORES))
    asked = options.parse_args()
    with record_of(asked, QUESTION) as record, tempfile.TemporaryDirectory() as place:
        data = Path(place) / "data"
        data.mkdir()
        apart(make_rows, data, asked.rows)
        for name in asked.stores:
            measure = partial(measured, name, Path(place), data, asked.batch)
            add_rounds(record, asked.rounds, options_digest(asked, "stores"), [name], measure)


def measured(name: str, place: Path, data: Path, batch: int, _: int) -> dict[str, dict[str, float]]:
    """One store's figures; nothing of one that fails."""
    filled, broken = place / "filled", place / "broken"
    filled.mkdir()
    broken.mkdir()
    try:
        row = apart(fill, name, data, filled, batch) | apart(ask, name, data, filled)
        row |= crash(name, data, broken, batch)
    except Exception as error:  # whatever a stranger's store raises is the finding
        print(f"{name} fails: {error}", flush=True)
        return {}
    finally:
        shutil.rmtree(filled)
        shutil.rmtree(broken)
    return {
        name: {
            "rows / s": row["insert"],
            "open s": row["open_s"],
            "query ms": row["query_ms"],
            "query ms, of 200": row["batch_ms"],
            "recall@5": row["recall"],
            "MB memory": row["memory"] / 1e6,
            "MB disk": row["disk"] / 1e6,
            "read while written": row["reader"] == "yes",
            "rows kept after kill": row["crash"].startswith("kept"),
            "searchable after kill": row["crash"].endswith("searchable"),
        }
    }


if __name__ == "__main__":
    main()
