"""Muon for the weight matrices of a model and AdamW for all other weights, as one optimiser for a Trainer."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW
from transformers import PreTrainedModel

_MOMENTUM = 0.95
_COEFFICIENTS = (3.4445, -4.775, 2.0315)
"""Of the Newton-Schulz iteration (Jordan et al. 2024)."""


class MuonAdamW(AdamW):
    """Muon (Jordan et al. 2024) for weight matrices, and AdamW for embeddings (input and output), norms and vectors.
    Muon's step is scaled to the size of AdamW's (Liu et al. 2025), so that both use one learning rate."""

    def __init__(self, model: nn.Module, *, learning_rate: float, weight_decay: float) -> None:
        """Optimise all trainable parameters of ``model``."""
        outputs = [each.get_output_embeddings() for each in model.modules() if isinstance(each, PreTrainedModel)]
        inputs = [each for each in model.modules() if isinstance(each, nn.Embedding)]
        embeddings = {id(each.weight) for each in (*inputs, *outputs) if each is not None}
        trained = {id(each): each for each in model.parameters() if each.requires_grad}.values()
        matrices = [each for each in trained if each.ndim == 2 and id(each) not in embeddings]
        others = [each for each in trained if each.ndim != 2 or id(each) in embeddings]
        groups = [{"params": matrices, "muon": True}, {"params": others, "muon": False}]
        super().__init__([group for group in groups if group["params"]], lr=learning_rate, weight_decay=weight_decay)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # Trainers pass no closure
        groups = self.param_groups
        self.param_groups = [group for group in groups if not group["muon"]]
        super().step()
        self.param_groups = groups
        matrices = ((weight, group) for group in groups if group["muon"] for weight in group["params"])
        for weight, group in matrices:
            if weight.grad is None:
                continue
            state = self.state[weight]
            if not state:
                state["momentum_buffer"] = torch.zeros_like(weight.grad)
                state["step"] = torch.zeros(())  # AdamW expects it in every stored state
            momentum = state["momentum_buffer"].lerp_(weight.grad, 1 - _MOMENTUM)
            update = orthogonal(weight.grad.lerp(momentum, _MOMENTUM))
            weight.mul_(1 - group["lr"] * group["weight_decay"])
            # Scale to the size of AdamW's steps: 0.2 sqrt(max(rows, columns)), Liu et al. 2025, equation 4.
            weight.add_(update, alpha=-group["lr"] * 0.2 * math.sqrt(max(weight.shape)))


def orthogonal(matrix: Tensor, iterations: int = 5) -> Tensor:
    """Keep the singular vectors of a matrix and set its singular values to about 1: X ← a X + (b A + c A²) X with A =
    X Xᵀ (Newton-Schulz, Jordan et al. 2024). In bfloat16, except on a CPU, where the conversion takes three quarters
    of a training step."""
    a, b, c = _COEFFICIENTS
    x = matrix if matrix.device.type == "cpu" else matrix.bfloat16()
    if tall := matrix.shape[0] > matrix.shape[1]:
        x = x.T
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(iterations):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x
