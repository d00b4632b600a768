"""The value function: a scalar head on the policy's own forward pass at the last token of a state. It predicts the
outcome of the whole episode.

``ValueHead`` reads hidden states, which only a model in this process provides; ``LogprobHead`` reads log-probabilities
of some tokens, which engines and servers provide, too. It is saved in a subfolder of the policy's checkpoint.
"""

import json
from pathlib import Path
from typing import ClassVar

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from treeagent.types import UserError

FOLDER = "value_head"
LOGPROBS = 128
"""Number of tokens that a ``LogprobHead`` reads. It is also the most that a request to vLLM may ask for."""
_LEAST_DEVIATION = 1e-3
"""Least standard deviation of a feature: one that varies less shows nothing but rounding errors."""


class ValueHead(nn.Module):
    """The value low + (high - low) σ(u) of a state, where u = w₂ · tanh(W₁ x + b₁) + b₂ and x is the policy's last
    hidden state at the last token of the state, with each feature standardised: a few are far larger than all others
    (Sun et al. 2024, "Massive Activations"). w₂ and b₂ start at zero. With ``middle``, u is the mean of two such
    functions; the other one reads the middle layer."""

    reads: ClassVar[str] = "hidden"

    def __init__(
        self, hidden_size: int, reward_range: tuple[float, float] = (0.0, 1.0), seed: int = 0, *, middle: bool = False
    ) -> None:
        """``reward_range``: the lowest and the highest return."""
        super().__init__()
        self.hidden_size = hidden_size
        self.reward_range = (float(reward_range[0]), float(reward_range[1]))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.hidden = nn.Linear(hidden_size, hidden_size)
            self.output = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)
        self.mean, self.deviation = nn.Buffer(torch.zeros(hidden_size)), nn.Buffer(torch.ones(hidden_size))
        """Mean and standard deviation of each feature; 0 and 1 before ``standardise``."""
        self.middle = ValueHead(hidden_size, reward_range, seed + 1) if middle else None

    def forward(self, features: Tensor) -> Tensor:
        """Map features (..., hidden_size), or (..., 2 · hidden_size) with the middle layer's first, to logits (...)."""
        return torch.stack(self._logits(features)).mean(0)

    def _logits(self, features: Tensor) -> list[Tensor]:
        """The logits by the last layer, and then those by the middle layer if the head reads it."""
        standardised = (features[..., -self.hidden_size :].to(self.hidden.weight) - self.mean) / self.deviation
        logits: Tensor = self.output(torch.tanh(self.hidden(standardised)))
        own = [logits.squeeze(-1)]
        return own if self.middle is None else own + self.middle._logits(features[..., : self.hidden_size])

    @torch.no_grad()
    def standardise(self, features: Tensor) -> None:
        """Standardise by the means and standard deviations of ``features``, (states, features). A head that has learnt
        keeps its values: its first layer is rewritten for the new scale."""
        if self.middle is not None:
            self.middle.standardise(features[:, : self.hidden_size])
        features = features[:, -self.hidden_size :].to(self.hidden.weight)
        mean, deviation = features.mean(0), features.std(0, correction=0).clamp(min=_LEAST_DEVIATION)
        if self.output.weight.any():  # a new head gives one value, whatever its first layer, whose scale is then right
            self.hidden.bias.add_(self.hidden.weight @ ((mean - self.mean) / self.deviation))
            self.hidden.weight.mul_(deviation / self.deviation)
        self.mean.copy_(mean)
        self.deviation.copy_(deviation)

    @torch.no_grad()
    def scale(self, slope: float, shift: float) -> None:
        """Change the last layers so that the logit u becomes slope · u + shift."""
        self.output.weight.mul_(slope)
        self.output.bias.mul_(slope).add_(shift)
        if self.middle is not None:
            self.middle.scale(slope, shift)

    def value(self, features: Tensor) -> Tensor:
        """Expected outcomes in reward units, of features as in ``forward``, to (...)."""
        low, high = self.reward_range
        return low + (high - low) * torch.sigmoid(self(features))

    def rescale(self, targets: Tensor) -> Tensor:
        """Outcomes in reward units as numbers from 0 to 1."""
        low, high = self.reward_range
        outside = targets[~((targets >= low) & (targets <= high))]
        if outside.numel():
            raise UserError(
                f"value target {outside[0].item():g} lies outside the head's reward range ({low:g}, {high:g}): "
                "set environment.returns to the range that the environment's returns have, for a head that is made anew"
            )
        return (targets - low) / (high - low)

    def loss(self, features: Tensor, targets: Tensor) -> Tensor:
        """Mean binary cross-entropy, in nats, against targets in reward units, which may be soft."""
        return self.cross_entropy(features, self.rescale(targets))

    def cross_entropy(self, features: Tensor, targets: Tensor) -> Tensor:
        """As ``loss``, for targets in [0, 1]. If the head reads two layers, each learns as if it were alone."""
        losses = [functional.binary_cross_entropy_with_logits(each, targets) for each in self._logits(features)]
        return torch.stack(losses).mean()

    def save(self, checkpoint: Path) -> None:
        """Write ``<checkpoint>/value_head/``, apart because vLLM refuses tensors that are none of the model's."""
        folder = checkpoint / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        save_file(self.state_dict(), folder / "model.safetensors")
        facts = {"hidden_size": self.hidden_size, "reward_range": self.reward_range, "reads": self.reads}
        (folder / "config.json").write_text(json.dumps(facts | ({"middle": True} if self.middle is not None else {})))

    @staticmethod
    def load(checkpoint: Path) -> "ValueHead":
        """Load the head that ``save`` wrote into the policy's checkpoint."""
        folder = checkpoint / FOLDER
        facts = json.loads((folder / "config.json").read_text())
        kind = LogprobHead if facts.pop("reads", "hidden") == "logprobs" else ValueHead
        head = kind(**facts)
        head.load_state_dict(load_file(folder / "model.safetensors"))
        return head


class LogprobHead(ValueHead):
    """A value head that reads, instead of hidden states, the log-probabilities (in nats, at temperature 1) of
    ``hidden_size`` tokens as the next one. Up to a constant, they are linear in the last hidden state."""

    reads = "logprobs"

    def __init__(
        self, hidden_size: int = LOGPROBS, reward_range: tuple[float, float] = (0.0, 1.0), seed: int = 0
    ) -> None:
        super().__init__(hidden_size, reward_range, seed)
        self.tokens = nn.Buffer(torch.zeros(hidden_size, dtype=torch.long))
        """Ids of the tokens; all 0 before ``choose``."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(self.tokens.tolist())

    @torch.no_grad()
    def choose(self, logprobs: Tensor) -> None:
        """Choose the tokens whose ``logprobs``, [states, vocabulary], explain most of those of all others: each next
        one is explained least by those before (a QR decomposition with column pivoting)."""
        if logprobs.shape[1] < self.hidden_size:
            raise UserError(
                f"the model's vocabulary has {logprobs.shape[1]} tokens, but a value head on log-probabilities reads "
                f"{self.hidden_size}: set update.value_reads=hidden"
            )
        residual = logprobs.float() - logprobs.float().mean(0)
        chosen: list[int] = []
        for _ in range(self.hidden_size):
            unexplained = residual.pow(2).sum(0)
            unexplained[chosen] = -1.0
            chosen.append(int(unexplained.argmax()))
            direction = residual[:, chosen[-1]]
            if (length := direction.norm()) > 0:
                direction = direction / length
                residual.addr_(direction, direction @ residual, alpha=-1)
        self.tokens.copy_(torch.tensor(chosen))
