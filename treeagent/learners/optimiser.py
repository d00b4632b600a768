"""Muon for the weight matrices of a model and AdamW for all other weights, as one optimiser for a Trainer."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer
from transformers import PreTrainedModel


class MuonAdamW(Optimizer):
    """Muon (Jordan et al. 2024), which orthogonalises the update of each weight matrix, and AdamW for embeddings, norms
    and vectors. Embeddings are those of the input and of the output (``lm_head``), tied or not, as in both papers. The
    step of Muon is scaled to the size of a step of AdamW (Liu et al. 2025), so that both use one learning rate."""

    def __init__(self, model: nn.Module, *, learning_rate: float, weight_decay: float) -> None:
        """Optimise all trainable parameters of ``model``."""
        embeddings = _embeddings(model)
        trained = {id(parameter): parameter for parameter in model.parameters() if parameter.requires_grad}.values()
        matrices = [parameter for parameter in trained if parameter.ndim == 2 and id(parameter) not in embeddings]
        others = [parameter for parameter in trained if parameter.ndim != 2 or id(parameter) in embeddings]
        self._parts: list[Optimizer] = []
        if matrices:
            self._parts.append(_Muon(matrices, lr=learning_rate, weight_decay=weight_decay))
        if others:
            self._parts.append(AdamW(others, lr=learning_rate, weight_decay=weight_decay))
        super().__init__([group for part in self._parts for group in part.param_groups], {})
        self._share()

    def _share(self) -> None:
        """Share the state and the parameter groups with the two optimisers inside, so that changes by a schedule, a
        checkpoint or FSDP reach them."""
        for part, group in zip(self._parts, self.param_groups, strict=True):
            part.param_groups, part.state = [group], self.state

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # Trainers pass no closure
        for part in self._parts:
            part.step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._share()


def _embeddings(model: nn.Module) -> set[int]:
    """The ``id`` of the weight of every input and output embedding. Only a ``PreTrainedModel`` names its output
    embedding."""
    outputs = [module.get_output_embeddings() for module in model.modules() if isinstance(module, PreTrainedModel)]
    inputs = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    return {id(module.weight) for module in (*inputs, *outputs) if module is not None}


class _Muon(Muon):
    """Muon that orthogonalises in the precision of the weights on a CPU. torch's Muon does so in bfloat16 on every
    device, which takes three quarters of a training step on a CPU without instructions for bfloat16."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(weight.grad)
                momentum = state["momentum_buffer"].lerp_(weight.grad, 1 - group["momentum"])
                update = orthogonal(weight.grad.lerp(momentum, group["momentum"]), group["ns_coefficients"])
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                # Scale to the size of AdamW's steps: 0.2 sqrt(max(rows, columns)), Liu et al. 2025, equation 4.
                weight.add_(update, alpha=-group["lr"] * 0.2 * math.sqrt(max(weight.shape)))


def orthogonal(matrix: Tensor, coefficients: tuple[float, float, float], iterations: int = 5) -> Tensor:
    """Orthogonalise a matrix: keep its singular vectors, approximately, and set its singular values to about 1. Uses
    the Newton-Schulz iteration X ← a X + (b A + c A²) X with A = X Xᵀ (Jordan et al. 2024), in bfloat16 on any device
    except a CPU."""
    a, b, c = coefficients
    x = matrix if matrix.device.type == "cpu" else matrix.bfloat16()
    if tall := matrix.shape[0] > matrix.shape[1]:
        x = x.T
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(iterations):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x
