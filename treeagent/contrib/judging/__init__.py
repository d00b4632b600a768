"""Rewards with several components: what rules, models and the environment give for each step, and what the step costs.

* ``RewardsConfig`` holds the settings ``[rewards]``.
* ``Step`` is the input of a user's own rule; ``components_of`` returns all components of a stored step.
* ``reweighed`` recomputes the rewards of stored trees under other weights, without inference.
"""

from treeagent.contrib.judging.components import Step, components_of
from treeagent.contrib.judging.config import RewardsConfig
from treeagent.contrib.judging.reweigh import reweighed, with_rewards

__all__ = ["RewardsConfig", "Step", "components_of", "reweighed", "with_rewards"]
