"""Check the stored trees and episodes of a run: shards, token ids and index."""

from collections.abc import Callable
from pathlib import Path

from treeagent.pipeline.folder import Run
from treeagent.pipeline.index import ShardRows, index_entries, index_path
from treeagent.search.node import Tree
from treeagent.search.record import from_record
from treeagent.store import CorruptShard, read_as, shard_file, shard_place, shards


def verify(folder: Path, on_shard: Callable[[], None] = lambda: None) -> tuple[int, int]:
    """Read and check every shard of a folder. Returns the number of shards and the number of trees.

    Args:
        on_shard: called after each shard.

    Raises:
        CorruptShard: a shard is damaged, the token ids of a tree are inconsistent, or the index lists other trees than
            the shard holds. The first such shard in order of name and number is reported. If all shards are sound: a
            shard that the index lists is missing.
    """
    count, entries, of = 0, dict[int, ShardRows](), ""
    files = shards(folder)
    for path in files:
        name, index = shard_place(path)
        if name != of:
            entries, of = index_entries(folder, name), name
        trees = list(read_as(from_record, folder, name, index))
        for line, tree in enumerate(trees, start=1):
            if fault := _fault(tree):
                raise CorruptShard(
                    f"{path}, line {line}: {fault}: delete this file, and run what made it with --resume"
                )
        found = ShardRows.of(path, trees)
        entry = entries.get(index, found)
        if entry.seal == found.seal and entry != found:
            raise CorruptShard(f"{index_path(folder, name)} tells of other trees than {path} holds: delete the index")
        count += len(trees)
        on_shard()
    for path in sorted(folder.glob(index_path(folder, "*").name)):
        name = path.name.removesuffix(index_path(folder, "").name)
        for index in sorted(index_entries(folder, name)):
            if not shards(folder, name, index):
                raise CorruptShard(
                    f"{folder / shard_file(name, index)} is missing, though {path.name} lists it: run what made it "
                    "with --resume, or delete the index"
                )
    return len(files), count


def require_episodes(run: Run) -> None:
    """Check that no episodes of a finished evaluation are missing. Unlike trees, episodes have no index; the facts of
    an evaluation say how many tasks it played.

    Raises:
        CorruptShard: fewer episodes are stored than tasks were played.
    """
    for stage, facts in run.stages().items():
        if "mode" in facts and (tasks := int(facts["tasks"])) > (count := _episodes(run, stage)):
            raise CorruptShard(
                f"{run.episodes} holds {count} of the {tasks} episodes of {stage}: run what made them with --resume, "
                "which plays them again"
            )


def _episodes(run: Run, stage: str) -> int:
    return sum(1 for _ in read_as(dict, run.episodes, stage))


def _fault(tree: Tree) -> str:
    """The first inconsistency in the token ids and log-probabilities of a tree; empty if there is none."""
    for _, node in tree.walk():
        for edge in node.edges:
            ids, logprobs, forced = edge.action.token_ids, edge.action.logprobs, edge.action.forced
            if logprobs and len(logprobs) != len(ids):
                return (
                    f"an action of task {tree.task.id} has {len(ids)} token ids and {len(logprobs)} log-probabilities"
                )
            if any(not 0 <= at < len(ids) for at in forced):
                return f"an action of task {tree.task.id} has {len(ids)} token ids and a forced one beyond them"
            if any(each < 0 for each in (*ids, *node.context_ids)):
                return f"a token id of task {tree.task.id} is negative"
            if any(each > 0 for each in logprobs):
                return f"a log-probability of task {tree.task.id} is above 0"
    return ""
