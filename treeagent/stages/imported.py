"""Import transcripts of other agents as the trees and episodes of a run."""

from pathlib import Path

from treeagent.agent.checkpoint import load_tokenizer
from treeagent.config import RunConfig
from treeagent.export.transcripts import read_transcripts, transcript_tree
from treeagent.generators.grammar import make_grammar
from treeagent.run.folder import COLLECTED, Run
from treeagent.run.index import append, write_trees
from treeagent.stages.build import conversation, known_tools, shots
from treeagent.stages.demonstrate import tokenise

_SHARD = 100
"""Trees in a shard."""


def import_transcripts(config: RunConfig, file: Path, out: Path, checkpoint: Path | None = None) -> int:
    """Write a run that holds the transcripts of a file, both as training trees and as episodes. Returns their number.

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
        trees = [transcript_tree(each, grammar) for each in transcripts]
    else:
        tokenizer = load_tokenizer(checkpoint)
        chat, grammar = conversation(tokenizer, config.policy, known_tools(config), shown=shots(config))
        trees = [tokenise(transcript_tree(each, grammar), chat) for each in transcripts]
    places = range(len(trees))
    batches = [list(places[start : start + _SHARD]) for start in places[::_SHARD]]
    with Run.create(out, config, resume=False) as run:
        run.episodes.mkdir(exist_ok=True)
        for index, batch in enumerate(batches):
            some = [trees[place] for place in batch]
            write_trees(run.episodes, "imported", index, some)
            append(run.trees, COLLECTED, write_trees(run.trees, COLLECTED, index, some))
        run.finish(COLLECTED, {"tasks": len(trees), "batches": len(batches), "value_signal": []})
    return len(trees)
