"""An analyst who knows the query and has a noise dial: what it thinks is true, only its calls err."""

import random
import re
from typing import TYPE_CHECKING

from treeagent.types import Refused

if TYPE_CHECKING:
    from treeagent.envs.sql.env import SqlEnv


class SqlDemonstrator:
    """Looks at the tables, tries the query, then answers with it. With probability ``noise`` a query has a slip, such
    as another column or no condition; one that was only tried is then tried again.
    """

    def __init__(self, env: "SqlEnv", noise: float) -> None:
        if not 0.0 <= noise <= 1.0:
            raise Refused(f"noise is {noise}: give a probability between 0 and 1")
        self._env, self._noise = env, noise

    def act(self, rng: random.Random) -> tuple[str, str]:
        question, visit = self._env.question, self._env.visit
        errs = rng.random() < self._noise
        if not visit.read_schema and not errs:
            return "which tables are there", "schema[]"
        said = self._slip(rng) if errs else question.gold
        return question.plan, f"{'answer' if visit.tried == question.gold else 'query'}[{said}]"

    def _slip(self, rng: random.Random) -> str:
        schema, gold = self._env.question.schema, self._env.question.gold
        columns = [column for column in schema.columns() if re.search(rf"\b{column}\b", gold)]
        slips = [re.sub(rf"\b{old}\b", new, gold) for old in columns for new in schema.columns() if new not in columns]
        slips += [gold.replace("DESC", "ASC"), re.sub(r" WHERE .*?(?= ORDER|$)", "", gold), gold.replace("SELECT ", "")]
        return rng.choice([slip for slip in slips if slip != gold])
