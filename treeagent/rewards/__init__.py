"""Rewards of several components: what each step is worth by rules, models and the environment, and what it costs.

* ``RewardsConfig`` are the settings ``[rewards]``.
* ``Step`` is what a rule of the user's own reads; ``components_of`` gives all components of a stored step.
* ``reweighed`` gives stored trees the rewards of other weights, without inference.
"""

from treeagent.rewards.components import Step, components_of
from treeagent.rewards.config import RewardsConfig
from treeagent.rewards.reweigh import retold, reweighed

__all__ = ["RewardsConfig", "Step", "components_of", "retold", "reweighed"]
