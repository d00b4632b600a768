"""How well the most similar step that a replay buffer finds answers for a step of a task that it never saw.

    .venv/bin/python benchmarks/encoders.py runs/quickstart --policy runs/quickstart/checkpoints/warm

The real steps of a run's trees are split by task as for a world model; those learnt fill a buffer a time for every
encoder, those held out ask for the one step most like them.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from treeagent.config import RunConfig
from treeagent.imagination.load import load_encoder
from treeagent.run.folder import Run
from treeagent.stages.world import experiences, split
from treeagent.world_model.encoder import Encoder, EncoderConfig, LexicalEncoder
from treeagent.world_model.fidelity import agreement
from treeagent.world_model.replay import ReplayBuffer
from treeagent.world_model.transition import Experience


def row(name: str, encoder: Encoder, learnt: Sequence[Experience], asked: Sequence[Experience]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        buffer = ReplayBuffer(Path(folder) / "b.sqlite", encoder, create=True)
        started = time.perf_counter()
        buffer.add(learnt)
        filled = time.perf_counter() - started
        found = [near[0] for near in buffer.nearest([(one.history, one.action) for one in asked], 1)]
        buffer.close()
    pairs = list(zip(asked, found, strict=True))
    figures = (
        [one.kind == near.kind for one, near in pairs],
        [agreement(one, near.observation) for one, near in pairs],
        [one.observation.strip() == near.observation.strip() for one, near in pairs],
        [(one.reward, one.terminated) == (near.reward, near.terminated) for one, near in pairs],
    )
    shares = " | ".join(f"{100 * statistics.mean(figure):.1f}" for figure in figures)
    dimension = encoder.encode([""]).shape[1]
    return f"| {name} | {dimension} | {shares} | {1000 * filled / len(learnt):.2f} |"


def encoders(config: RunConfig, policy: Path, sentences: str | None) -> dict[str, Encoder]:
    place = config.world.device_map
    found: dict[str, Encoder] = {
        "words": LexicalEncoder(),
        "the policy's hidden states": load_encoder(EncoderConfig("hidden-states"), str(policy), place),
    }
    if sentences:
        settings = EncoderConfig("sentence-transformers", sentences)
        found[sentences] = load_encoder(settings, sentences, place)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--policy", type=Path, required=True, help="a checkpoint")
    parser.add_argument("--sentences", help="folder or hub name of a model of sentence-transformers")
    arguments = parser.parse_args()
    run = Run.open(arguments.run)
    learnt, held_out = split(experiences(run))
    asked = [one for one in held_out if not one.opens]
    print(f"{len(learnt):,} steps to find, {len(asked):,} to ask")
    print("| encoder | dimension | same kind of action | agreement | exact | reward and end | ms / step added |")
    print(f"|{'---|' * 7}")
    for name, encoder in encoders(run.config, arguments.policy, arguments.sentences).items():
        print(row(name, encoder, learnt, asked), flush=True)


if __name__ == "__main__":
    main()
