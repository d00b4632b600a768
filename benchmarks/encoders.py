"""How well the nearest step in a replay buffer predicts the observation of a step from an unseen task.

    .venv/bin/python -m benchmarks.quickstart --seeds 0 1 2  # grows the trees
    .venv/bin/python -m benchmarks.encoders --seeds 0 1 2 --sentences FOLDER

The steps of the trees are split by task, as for a world model. The training steps fill one buffer per encoder. Each
held-out step then queries the buffer for its nearest neighbour.
"""

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.command import record_of, settings_of, start_of, starting
from benchmarks.record import Row, digest
from treeagent.config import RunConfig
from treeagent.pipeline.folder import Run
from treeagent.pipeline.imagination import load_encoder
from treeagent.pipeline.world import experiences, split
from treeagent.world_model.encoder import Encoder, EncoderConfig, LexicalEncoder
from treeagent.world_model.fidelity import agreement
from treeagent.world_model.replay import ReplayBuffer
from treeagent.world_model.transition import Experience

QUESTION = "How often does the most similar stored step answer for a step of a task that was never seen?"


def figures(encoder: Encoder, learnt: Sequence[Experience], arguments: Sequence[Experience]) -> dict[str, float]:
    """Find the nearest ``learnt`` step for each ``arguments`` step. Returns how often what followed agrees, and the
    cost."""
    with tempfile.TemporaryDirectory() as folder:
        buffer = ReplayBuffer(Path(folder) / "b.sqlite", encoder, create=True)
        started = time.perf_counter()
        buffer.add(learnt)
        filled = time.perf_counter() - started
        found = [near[0] for near in buffer.nearest([(one.history, one.action) for one in arguments], 1)]
        buffer.close()
    pairs = list(zip(arguments, found, strict=True))
    return {
        "kind": statistics.fmean(one.kind == near.kind for one, near in pairs),
        "agreement": statistics.fmean(agreement(one, near.observation) for one, near in pairs),
        "exact": statistics.fmean(one.observation.strip() == near.observation.strip() for one, near in pairs),
        "reward and end": statistics.fmean(
            (one.reward, one.terminated) == (near.reward, near.terminated) for one, near in pairs
        ),
        "ms / step added": 1000 * filled / len(learnt),
        "dimension": encoder.encode([""]).shape[1],
        "steps to find": len(learnt),
        "steps that ask": len(pairs),
    }


def encoders(config: RunConfig, policy: Path, sentences: str | None) -> dict[str, Encoder]:
    device = config.world.device_map
    found: dict[str, Encoder] = {
        "words": LexicalEncoder(),
        "the policy's hidden states": load_encoder(EncoderConfig("hidden-states"), str(policy), device),
    }
    if sentences:
        settings = EncoderConfig("sentence-transformers", sentences)
        found[Path(sentences).name] = load_encoder(settings, sentences, device)
    return found


def main() -> None:
    options = starting(__doc__, "encoders")
    options.add_argument("--steps", type=int, default=3000, help="stored steps to find; a fifth as many ask")
    options.add_argument("--sentences", help="folder or hub name of a model of sentence-transformers")
    arguments = options.parse_args()
    with record_of(arguments, QUESTION) as record:
        for seed in arguments.seeds:
            run = Run.open(arguments.runs / f"seed{seed}")
            learnt, held_out = split(experiences(run))
            queries = [one for one in held_out if not one.opens][: arguments.steps // 5]
            settings = digest(settings_of(run.config) | {"steps": arguments.steps})
            for name, encoder in encoders(run.config, start_of(arguments.runs, seed), arguments.sentences).items():
                if not record.has(name, seed, settings):
                    record.add(Row(name, seed, settings, figures=figures(encoder, learnt[: arguments.steps], queries)))


if __name__ == "__main__":
    main()
