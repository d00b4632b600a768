"""Muon and AdamW as one optimiser."""

import copy

import torch
from torch import nn
from torch.optim import AdamW, Muon, Optimizer

from treeagent.learners.common import MuonAdamW


class Tied(nn.Module):
    """A small tied language model: an embedding that is also the head, one matrix, one bias, one frozen matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.matrix = nn.Linear(4, 4)
        self.frozen = nn.Linear(4, 4, bias=False).requires_grad_(False)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight


def tied() -> Tied:
    torch.manual_seed(0)
    model = Tied()
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter) if parameter.requires_grad else None
    return model


def test_matrices_take_muons_step_and_the_rest_adamws() -> None:
    model = tied()
    plain = copy.deepcopy(model)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        other.grad = one.grad
    MuonAdamW(model, learning_rate=0.1, weight_decay=0.01).step()
    muon: Optimizer = Muon([plain.matrix.weight], lr=0.1, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    muon.step()
    AdamW([plain.embedding.weight, plain.matrix.bias], lr=0.1, weight_decay=0.01).step()
    for (name, one), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        # torch's Muon rounds to bfloat16 inside. A step is at most 0.1 · 0.2 · √4.
        assert torch.allclose(one, other, rtol=0, atol=5e-4 if name == "matrix.weight" else 0), name
