"""``treeagent hindsight``: how much each step of a run's trees mattered."""

from pathlib import Path
from typing import Annotated

import typer

from treeagent.cli.options import RunFolder, find_checkpoint, require_trees
from treeagent.pipeline.terminal import Terminal

app = typer.Typer()
_SHOWN = 10
"""Steps that the command prints."""


@app.command()
def hindsight(
    run_folder: RunFolder,
    model: Annotated[
        str, typer.Option("--model", metavar="CHECKPOINT", help="The policy to ask; by default the one that searched.")
    ] = "",
) -> None:
    """Measure for each step of RUN's trees how much its outcome changes the policy, and the drop in Q without it.

    Writes RUN/hindsight.jsonl, one line a step, and prints the steps with the largest divergence.

    Example: treeagent hindsight runs/shop
    """
    import orjson

    from treeagent.contrib.hindsight.divergence import hindsight as measured
    from treeagent.contrib.hindsight.divergence import searching_policy
    from treeagent.contrib.viewer.pack import criticality
    from treeagent.pipeline.folder import COLLECTED, Run
    from treeagent.search.record import from_record
    from treeagent.store import read_as, write_atomic
    from treeagent.visible import visible

    require_trees(run_folder, COLLECTED)
    run = Run.open(run_folder)
    measure = measured(find_checkpoint(model) if model else searching_policy(run), run.config)
    rows = list[tuple[float, str, dict[str, object]]]()
    for name in run.collections():
        for tree in read_as(from_record, run.trees, name):
            found, drops = measure(tree), criticality(tree)
            for path, _ in tree.walk():
                if path and (divergence := found.get(id(path[-1]))) is not None:
                    text = path[-1].action.text
                    step = {"task": tree.task.id, "depth": len(path), "action": text}
                    row = step | {"divergence": divergence, "drop": drops.get(id(path[-1]))}
                    rows.append((divergence, f"{tree.task.id}, step {len(path)}: {text}", row))
    write_atomic(run.path / "hindsight.jsonl", b"".join(orjson.dumps(row) + b"\n" for _, _, row in rows))
    console = Terminal(soft_wrap=True)
    for divergence, where, _ in sorted(rows, key=lambda each: -each[0])[:_SHOWN]:
        console.print(f"{divergence:8.3f} nats  {visible(where)}")
    console.print(f"{len(rows)} steps in {Path(run_folder) / 'hindsight.jsonl'}")
