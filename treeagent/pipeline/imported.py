"""Import transcripts of other agents as the trees and episodes of a run."""

from collections import Counter
from pathlib import Path
from typing import NamedTuple

from treeagent.agent.checkpoint import count_context, load_tokenizer
from treeagent.config import RunConfig
from treeagent.contrib.traces.transcripts import read_transcripts, transcript_tree
from treeagent.generators.formats import make_grammar
from treeagent.pipeline.build import conversation, known_tools, shots
from treeagent.pipeline.demonstrate import tokenise
from treeagent.pipeline.folder import COLLECTED, Run
from treeagent.pipeline.trees import write_trees
from treeagent.search.node import Edge, Tree

_SHARD = 100
"""Trees in a shard."""


class Imported(NamedTuple):
    """What an import wrote."""

    trees: int
    unfit: int
    """Turns that the format cannot express. They are shown, but not imitated."""
    cut: int
    """Transcripts whose end the model's context does not hold."""


def import_transcripts(config: RunConfig, file: Path, out: Path, checkpoint: Path | None = None) -> Imported:
    """Write a run that holds the transcripts of a file, both as training trees and as episodes.

    Args:
        config: the settings of the run, such as its environment and the format of turns.
        checkpoint: the model whose tokenizer gives the trees their token ids. Without it they hold text only, and
            cannot be imitated.

    Raises:
        UserError: a transcript cannot be read.
    """
    transcripts = read_transcripts(file)
    if checkpoint is None:
        grammar = make_grammar(config.policy.format)
        whole = trees = [transcript_tree(each, grammar) for each in transcripts]
    else:
        context = count_context(checkpoint)
        most = config.policy.most_tokens(context)
        chat, grammar = conversation(
            load_tokenizer(checkpoint), config.policy, known_tools(config), most, shots(config)
        )
        whole = [transcript_tree(each, grammar) for each in transcripts]
        trees = [tokenise(tree, chat) for tree in whole]
        for tree in trees:
            _cut(tree, context)
    numbers = Counter[str]()
    for tree in trees:  # a mark knows its tree by the task and the seed
        tree.seed = numbers[tree.task.id]
        numbers[tree.task.id] += 1
    places = range(len(trees))
    batches = [list(places[start : start + _SHARD]) for start in places[::_SHARD]]
    with Run.create(out, config, resume=False) as run:
        run.episodes.mkdir(exist_ok=True)
        for index, batch in enumerate(batches):
            some = [trees[place] for place in batch]
            write_trees(run.episodes, "imported", index, some)
            write_trees(run.trees, COLLECTED, index, some)
        run.finish(COLLECTED, {"tasks": len(trees), "batches": len(batches), "value_signal": []})
    unfit = sum(bool(edge.action.error) for tree in trees for node in tree.nodes() for edge in node.edges)
    cut = sum(_steps(tree) < _steps(before) for before, tree in zip(whole, trees, strict=True))
    return Imported(len(trees), unfit, cut)


def _cut(tree: Tree, context: int) -> None:
    """Cut a tree of one path before the first turn that a context of so many tokens does not hold."""
    path = list[Edge]()
    for node in [*tree.nodes()]:
        for edge in node.edges:
            if len(tree.prompt_ids(path)) + len(edge.action.token_ids) > context:
                node.edges = []
                return
            path.append(edge)


def _steps(tree: Tree) -> int:
    return sum(1 for _ in tree.nodes()) - 1
