"""Plan one task with a trained policy: load a checkpoint, grow a search tree, and print the plan.

    python examples/plan_with_checkpoint.py RUN CHECKPOINT

RUN is the folder of a run, and CHECKPOINT one of its policies, such as RUN/checkpoints/base. The settings and the
environment are those of the run. The search sees no rewards, as at evaluation: the value head judges the ends. If it
finds no end, the plan stops where nothing more is known.
"""

import asyncio
import sys
from pathlib import Path

from treeagent.pipeline.build import env_dynamics, environment, load_actors, with_split_steps
from treeagent.pipeline.folder import Run
from treeagent.search import best_path, make_search


def main(run: str, checkpoint: str) -> None:
    config = Run.open(Path(run)).config
    actors, policy = load_actors(Path(checkpoint), config)
    env = environment(config)
    steps = with_split_steps(env_dynamics(env, config, "plan", reveal_reward=False), config, policy.grammar)
    search = make_search(actors.sampling, steps, config.search, actors.value, noise=False)
    [task] = env.tasks("test", 1)
    [tree] = asyncio.run(search.run([task], seeds=[config.seed]))
    print(task.prompt)
    for edge in best_path(tree, likelihood_weight=config.evaluate.weight):
        print("->", edge.action.call)


if __name__ == "__main__":
    main(*sys.argv[1:])
