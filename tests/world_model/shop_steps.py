"""Real transitions of a small shop, and hand-made experiences."""

from collections.abc import Callable
from functools import lru_cache

from treeagent.envs import EnvDynamics
from treeagent.envs.shop import ShopEnv, ShopOptions
from treeagent.generators.turn import make_grammar
from treeagent.pipeline.demonstrate import demonstrate
from treeagent.search.node import Tree
from treeagent.types import Message, Split
from treeagent.views.transitions import transitions
from treeagent.world_model.replay import ReplayBuffer
from treeagent.world_model.transition import Experience

OpenBuffer = Callable[..., ReplayBuffer]
"""Opens a buffer with a given or the default encoder."""

RESULTS = "1 red lamp $9\n2 blue lamp $7\nnext >"
PAGE = "red lamp $9\nfeatures: Foldable\ncolor: Red/Pink"


def shop() -> ShopEnv:
    return ShopEnv(ShopOptions(products=100, page_size=3, labels="number", difficulty=1))


@lru_cache
def shop_trees(
    count: int, split: Split = "train", seed: int = 0, format: str = "react", template: str = ""
) -> tuple[Tree, ...]:
    env = shop()
    demonstrator = env.demonstrator(0.5)
    assert demonstrator is not None
    dynamics, grammar = EnvDynamics(env, max_steps=10), make_grammar(format, template)
    return tuple(demonstrate(dynamics, demonstrator, env.tasks(split, count), seed=seed, grammar=grammar))


def shop_steps(count: int, split: Split = "train", seed: int = 0) -> list[Experience]:
    """The steps of ``count`` demonstrations."""
    return [one for tree in shop_trees(count, split, seed) for one in transitions(tree)]


def experience(
    *said: str,
    answer: str = RESULTS,
    task: str = "find a red lamp under $10",
    task_id: str = "hand",
    reward: float = 0.0,
    terminated: bool = False,
    invalid: bool = False,
) -> Experience:
    """An experience. ``said`` alternates actions and observations after the opening, and ends with an action."""
    history = [Message("user", task), Message("user", "search page")]
    history += [Message("assistant" if place % 2 == 0 else "user", text) for place, text in enumerate(said[:-1])]
    return Experience(
        task_id, tuple(history), said[-1], answer, reward, terminated, invalid=invalid, depth=len(said) // 2
    )
