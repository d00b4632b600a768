"""The value function: a scalar head on what the policy's own forward pass says at a state's last token. It tells the
outcome of the whole episode.

``ValueHead`` reads the last hidden state, which only a model in this process gives. ``LogprobHead`` reads the
log-probabilities of some tokens there, which engines and servers give too. The policy's checkpoint stays a stock
Hugging Face one; the head is saved in a folder of its own inside it.
"""

import json
from pathlib import Path
from typing import ClassVar, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from treeagent.types import UserError

FOLDER = "value_head"
Reads = Literal["hidden", "logprobs"]
"""What a value head reads: the last hidden state, or log-probabilities of tokens."""
LOGPROBS = 128
"""Tokens that a ``LogprobHead`` reads. A request to vLLM may ask for as many."""
_LEAST_DEVIATION = 1e-3
"""In nats: the log-probability of a token that hardly varies tells nothing but rounding."""


class ValueHead(nn.Module):
    """The value low + (high - low) σ(w₂ · tanh(W₁ h + b₁) + b₂), h being the policy's last hidden state at the state's
    last token. The last layer starts at zero, so it starts in the middle of the range."""

    reads: ClassVar[Reads] = "hidden"

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
        states = hidden_states.to(self.hidden.weight)
        logits: Tensor = self.output(torch.tanh(self.hidden(states)))
        return logits.squeeze(-1)

    def value(self, hidden_states: Tensor) -> Tensor:
        """Expected outcomes in reward units, (..., hidden_size) to (...)."""
        low, high = self.reward_range
        return low + (high - low) * torch.sigmoid(self(hidden_states))

    def rescale(self, targets: Tensor) -> Tensor:
        """Outcomes in reward units to [0, 1].

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
        """Mean binary cross-entropy, in nats, of outcomes against targets in reward units, soft ones included."""
        return functional.binary_cross_entropy_with_logits(self(hidden_states), self.rescale(targets))

    def save(self, checkpoint: Path) -> None:
        """Write ``<checkpoint>/value_head/``: vLLM refuses a checkpoint with foreign tensors beside its own."""
        folder = checkpoint / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        save_file(self.state_dict(), folder / "model.safetensors")
        facts = {"hidden_size": self.hidden_size, "reward_range": self.reward_range, "reads": self.reads}
        (folder / "config.json").write_text(json.dumps(facts))

    @staticmethod
    def load(checkpoint: Path) -> "ValueHead":
        """Read what ``save`` wrote into the policy's checkpoint."""
        folder = checkpoint / FOLDER
        facts = json.loads((folder / "config.json").read_text())
        kind = LogprobHead if facts.pop("reads", "hidden") == "logprobs" else ValueHead
        head = kind(**facts)
        head.load_state_dict(load_file(folder / "model.safetensors"))
        return head


class LogprobHead(ValueHead):
    """A value head that reads, in place of the hidden state h, the log-probabilities (in nats, at temperature 1) of
    ``hidden_size`` tokens after the state, each less its mean and divided by its standard deviation over the states
    that the head was first fitted to. Up to their common constant they are linear in h."""

    reads = "logprobs"

    def __init__(
        self, hidden_size: int = LOGPROBS, reward_range: tuple[float, float] = (0.0, 1.0), seed: int = 0
    ) -> None:
        """
        Args:
            hidden_size: how many tokens are read.
            reward_range: as of ``ValueHead``.
            seed: as of ``ValueHead``.
        """
        super().__init__(hidden_size, reward_range, seed)
        self.tokens = nn.Buffer(torch.zeros(hidden_size, dtype=torch.long))
        """Ids of the tokens; all 0 before ``choose``."""
        self.mean, self.deviation = nn.Buffer(torch.zeros(hidden_size)), nn.Buffer(torch.ones(hidden_size))

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(self.tokens.tolist())

    @property
    def chosen(self) -> bool:
        """Whether tokens have been chosen."""
        return len(set(self.token_ids)) == self.hidden_size

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Log-probabilities of the tokens, (..., hidden_size), to logits (...)."""
        return super().forward((hidden_states.to(self.mean) - self.mean) / self.deviation)

    @torch.no_grad()
    def choose(self, logprobs: Tensor) -> None:
        """Choose the tokens whose log-probabilities together tell most of the others': each time the token that the
        ones before explain least (a QR decomposition with column pivoting). And note their means and deviations.

        Args:
            logprobs: of every token after some states, [states, vocabulary].

        Raises:
            UserError: the vocabulary has fewer tokens.
        """
        if logprobs.shape[1] < self.hidden_size:
            raise UserError(
                f"the model's vocabulary has {logprobs.shape[1]} tokens, but a value head on log-probabilities reads "
                f"{self.hidden_size}: set update.value_reads=hidden"
            )
        left = logprobs.float() - logprobs.float().mean(0)
        spread = left.pow(2).mean(0).sqrt()
        chosen: list[int] = []
        for _ in range(self.hidden_size):
            unexplained = left.pow(2).sum(0)
            unexplained[chosen] = -1.0
            chosen.append(int(unexplained.argmax()))
            direction = left[:, chosen[-1]]
            if (length := direction.norm()) > 0:
                direction = direction / length
                left.addr_(direction, direction @ left, alpha=-1)
        self.tokens.copy_(torch.tensor(chosen))
        self.mean.copy_(logprobs[:, chosen].float().mean(0))
        self.deviation.copy_(spread[chosen].clamp(min=_LEAST_DEVIATION))
