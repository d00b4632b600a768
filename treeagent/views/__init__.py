"""What a tree teaches: pure functions from stored trees to training data.

pairs = list(preference_pairs(tree, PairConfig()))                # DPO
rows = list(advantage_rows(tree, advantages([tree], AdvantageConfig())))  # GRPO and other policy gradients
rows = list(imitation_rows(tree, ImitationConfig()))              # supervised fine-tuning
rows = list(policy_rows(tree, PolicyTargetConfig()))  # distillation of the search's policy
rows = list(value_rows(tree, ValueTargetConfig()))                # the value head
steps = list(transitions(tree))                                   # the world model
"""

from treeagent.views.advantages import AdvantageConfig, AdvantageRow, advantage_rows, advantages
from treeagent.views.figures import tree_figures
from treeagent.views.imitation import ImitationConfig, imitation_rows
from treeagent.views.pairs import Continuation, PairConfig, PreferencePair, preference_pairs
from treeagent.views.policy import Candidate, PolicyRow, PolicyTargetConfig, policy_rows
from treeagent.views.signal import ValueSignal, value_signal
from treeagent.views.tokens import TokenRow, path_rows
from treeagent.views.transitions import transitions
from treeagent.views.values import ValueTargetConfig, value_rows

__all__ = [
    "AdvantageConfig",
    "AdvantageRow",
    "Candidate",
    "Continuation",
    "ImitationConfig",
    "PairConfig",
    "PolicyRow",
    "PolicyTargetConfig",
    "PreferencePair",
    "TokenRow",
    "ValueSignal",
    "ValueTargetConfig",
    "advantage_rows",
    "advantages",
    "imitation_rows",
    "path_rows",
    "policy_rows",
    "preference_pairs",
    "transitions",
    "tree_figures",
    "value_rows",
    "value_signal",
]
