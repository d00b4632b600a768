"""A reader who knows which articles to look up and has a noise dial: what it thinks is true, only its calls err."""

import random
import re
from typing import TYPE_CHECKING

from treeagent.envs.qa.questions import right
from treeagent.types import Refused

if TYPE_CHECKING:
    from treeagent.envs.qa.env import QaEnv

_NAME = re.compile(r"[A-Z]\w+(?: (?:and )?[A-Z]\w+)*")


class QaDemonstrator:
    """Looks up one article after the other, each time what the last one has named, then answers. A thought says what
    was read and what is to be found next.

    With probability ``noise`` it looks up another name that it has read, or answers with one; where it has read
    nothing, it looks for a single word. It then goes on from where it was. Of a question from a file it only knows the
    answer: it looks for the question as it stands.
    """

    def __init__(self, env: "QaEnv", noise: float) -> None:
        if not 0.0 <= noise <= 1.0:
            raise Refused(f"noise is {noise}: give a probability between 0 and 1")
        self._env, self._noise = env, noise

    def act(self, rng: random.Random) -> tuple[str, str]:
        question, visit = self._env.question, self._env.visit
        hops = [hop for hop in question.hops if hop.query not in visit.queries]
        done = question.hops[: len(question.hops) - len(hops)]
        said = [f"{done[-1].asks} {done[-1].finds}"] if done and done[-1].asks else []
        said += [f"need {hops[0].asks}"] if hops and hops[0].asks else []
        meant = f"search[{hops[0].query}]" if hops else f"answer[{question.answers[0]}]"
        return " . ".join(said), self._slip(meant, rng) if rng.random() < self._noise else meant

    def _slip(self, meant: str, rng: random.Random) -> str:
        question, visit = self._env.question, self._env.visit
        names = [name for name in dict.fromkeys(_NAME.findall(visit.read)) if not right(question, name)]
        known = names or question.hops[0].query.split()
        slips = [f"search[{each}]" for each in known] + [f"answer[{name}]" for name in names]
        others = [slip for slip in slips if slip != meant]
        return rng.choice(others) if others else meant
