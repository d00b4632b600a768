"""Muon for the matrices of a model and AdamW for everything else, as one optimiser that a Trainer can hold."""

from typing import Any

from torch import nn
from torch.optim import AdamW, Muon, Optimizer


class MuonAdamW(Optimizer):
    """Muon (Jordan et al. 2024), which makes the update of a weight matrix orthogonal, and AdamW for embeddings, norms
    and vectors. Muon's step is scaled to the size that AdamW's would have (Liu et al. 2025), so that one learning rate
    serves both."""

    def __init__(self, model: nn.Module, *, learning_rate: float, weight_decay: float) -> None:
        """All parameters of ``model`` that are trained; word embeddings, tied or not, count as no matrices."""
        embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
        trained = {id(one): one for one in model.parameters() if one.requires_grad}.values()
        matrices = [one for one in trained if one.ndim == 2 and id(one) not in embeddings]
        others = [one for one in trained if one.ndim != 2 or id(one) in embeddings]
        self._parts: list[Optimizer] = []
        if matrices:
            self._parts.append(
                Muon(matrices, lr=learning_rate, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
            )
        if others:
            self._parts.append(AdamW(others, lr=learning_rate, weight_decay=weight_decay))
        super().__init__([group for part in self._parts for group in part.param_groups], {})
        self._share()

    def _share(self) -> None:
        """One state and the same groups here and in the parts: what a schedule, a checkpoint or whoever shares weights
        out changes here changes there."""
        for part, group in zip(self._parts, self.param_groups, strict=True):
            part.param_groups, part.state = [group], self.state

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # Trainers pass no closure
        for part in self._parts:
            part.step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._share()
