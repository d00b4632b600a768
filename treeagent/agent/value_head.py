"""The value function: a scalar head on the policy's last hidden state, V(s) read at a state's last token.

The policy's checkpoint stays a stock Hugging Face one; the head is saved in a folder of its own inside it.
"""

import json
from pathlib import Path
from typing import Self

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from treeagent.types import UserError

FOLDER = "value_head"


class ValueHead(nn.Module):
    """The value V(s) = low + (high - low) σ(w₂ · tanh(W₁ h + b₁) + b₂), h being the policy's last hidden state at
    the state's last token. The last layer starts at zero, so V starts in the middle of the range."""

    def __init__(self, hidden_size: int, reward_range: tuple[float, float] = (0.0, 1.0), seed: int = 0) -> None:
        """
        Args:
            hidden_size: width of the policy's hidden states.
            reward_range: least and greatest return, in reward units.
            seed: of the first weights, which depend on nothing else.
        """
        super().__init__()
        low, high = reward_range
        self.hidden_size = hidden_size
        self.reward_range = (float(low), float(high))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.hidden = nn.Linear(hidden_size, hidden_size)
            self.output = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Hidden states (..., hidden_size), of any floating type, to logits (...)."""
        states = hidden_states.to(self.hidden.weight.dtype)
        logits: Tensor = self.output(torch.tanh(self.hidden(states)))
        return logits.squeeze(-1)

    def value(self, hidden_states: Tensor) -> Tensor:
        """V(s) in reward units, (..., hidden_size) to (...)."""
        low, high = self.reward_range
        return low + (high - low) * torch.sigmoid(self(hidden_states))

    def rescale(self, targets: Tensor) -> Tensor:
        """Returns in reward units to [0, 1].

        Raises:
            ValueError: a target lies outside the reward range, or is NaN.
        """
        low, high = self.reward_range
        outside = targets[~((targets >= low) & (targets <= high))]
        if outside.numel():
            raise UserError(
                f"value target {outside[0].item():g} lies outside the head's reward range ({low:g}, {high:g}): "
                "set environment.returns to the range that the environment's returns have, for a head that is made anew"
            )
        return (targets - low) / (high - low)

    def loss(self, hidden_states: Tensor, targets: Tensor) -> Tensor:
        """Mean binary cross-entropy, in nats, of V(s) against targets in reward units, soft ones included."""
        return functional.binary_cross_entropy_with_logits(self(hidden_states), self.rescale(targets))

    def save(self, checkpoint: Path) -> None:
        """Write ``<checkpoint>/value_head/``: vLLM refuses a checkpoint with foreign tensors beside its own."""
        folder = checkpoint / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        save_file(self.state_dict(), folder / "model.safetensors")
        facts = {"hidden_size": self.hidden_size, "reward_range": self.reward_range}
        (folder / "config.json").write_text(json.dumps(facts))

    @classmethod
    def load(cls, checkpoint: Path) -> Self:
        """Read what ``save`` wrote into the policy's checkpoint."""
        folder = checkpoint / FOLDER
        head = cls(**json.loads((folder / "config.json").read_text()))
        head.load_state_dict(load_file(folder / "model.safetensors"))
        return head
