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
        super().__init__([*matrices, *others], {"lr": learning_rate})
        self._share_groups()

    def _share_groups(self) -> None:
        """The parts' own groups, so that a schedule that changes a learning rate here changes it there."""
        self.param_groups = [group for part in self._parts for group in part.param_groups]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # Trainers pass no closure
        for part in self._parts:
            part.step()

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self._parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for part, state in zip(self._parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self._share_groups()
