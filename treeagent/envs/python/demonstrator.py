"""A programmer who knows the solution and has a noise dial."""

import random
import re
from typing import TYPE_CHECKING

from treeagent.types import Refused

if TYPE_CHECKING:
    from treeagent.envs.python.env import PythonEnv

_SLIPS = ((">", "<"), ("<", ">"), ("==", "!="), ("!=", "=="), ("*", "+"), ("+", "-"), ("max", "min"), ("min", "max"))


class PythonDemonstrator:
    """Tests the solution on the examples, then submits it. With probability ``noise`` its code has a slip, such as
    another number or a turned comparison; where that was only tested, it tests again.
    """

    def __init__(self, env: "PythonEnv", noise: float) -> None:
        if not 0.0 <= noise <= 1.0:
            raise Refused(f"noise is {noise}: give a probability between 0 and 1")
        self._env, self._noise = env, noise

    def act(self, rng: random.Random) -> tuple[str, str]:
        gold, tested = self._env.exercise.gold, self._env.visit.tested
        code = _slip(gold, rng) if rng.random() < self._noise else gold
        return ("it works", f"submit[{code}]") if tested == gold else ("try it", f"test[{code}]")


def _slip(gold: str, rng: random.Random) -> str:
    slips = [gold.replace(old, new, 1) for old, new in _SLIPS if old in gold]
    slips += [gold[: at.start()] + str(int(at[0]) + 1) + gold[at.end() :] for at in re.finditer(r"\d+", gold)]
    return rng.choice([*slips, gold.replace("return ", "", 1)])
