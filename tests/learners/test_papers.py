"""The loss of every baseline recipe against the formula of its paper, written by hand here."""

import copy
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean, stdev

import pytest
import torch
from tiny import make_model, tokens
from torch import Tensor, nn
from torch.nn.functional import logsigmoid
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from treeagent.config import RunConfig, load_config
from treeagent.learners.config import DPOConfig, GRPOConfig, SFTConfig
from treeagent.learners.dpo import train_dpo
from treeagent.learners.grpo import train_grpo
from treeagent.learners.sft import train_sft
from treeagent.pipeline.recipes import find_recipe
from treeagent.pipeline.update import scored_rows
from treeagent.search.node import Edge, Node, Tree
from treeagent.types import Action, Message, State, Task
from treeagent.views.imitation import imitation_rows
from treeagent.views.pairs import preference_pairs
from treeagent.views.values import value_rows


@dataclass
class Turn:
    """An action a_t after a state s_t, as in the formulas."""

    context: tuple[int, ...]
    ids: tuple[int, ...]
    value: float
    """V(s_t)."""
    edge: Edge
    ratio: Tensor
    """π / μ of each token."""
    logprob: Tensor
    """log π of each token."""


@dataclass
class Episode:
    """A whole trajectory τ."""

    turns: list[Turn]
    reward: float
    """R(τ), paid at the end."""
    group: int = 0
    new: int = 0
    """Number of turns at the start that belong to an earlier episode, too."""

    @property
    def ratio(self) -> Tensor:
        return torch.cat([turn.ratio for turn in self.turns])

    @property
    def logprob(self) -> Tensor:
        return torch.cat([turn.logprob for turn in self.turns])


class Samples:
    """Episodes of two tasks, and the trees that hold them."""

    def __init__(self, model: nn.Module, temperature: float, stale: float, branch: bool = False) -> None:
        """
        Args:
            stale: standard deviation of log π - log μ in nats, so that some ratios are clipped.
            branch: whether a third episode goes on from the first one's second state, and the fourth forms a group with
                the second one, as random expansion leaves them.
        """
        self._model, self._temperature, self._stale = model, temperature, stale
        self._shuffler = random.Random(5)
        self.tasks: list[list[Episode]] = []
        self.trees: list[Tree] = []
        for number, rewards in enumerate([(1.0, 0.0, 0.25, 0.75), (0.1, 0.0, 1.0, 0.6)]):
            task = Task(f"task-{number}", "do it")
            root = Node(State(task, (Message("user", "do it"),)), 0.4, tokens(self._shuffler, 3 + number))
            self.trees.append(Tree(task, 0, root))
            episodes: list[Episode] = []
            for place, reward in enumerate(rewards):
                start = episodes[0].turns[:1] if branch and place == 2 else []
                episodes.append(self._play(root, start, reward, length=2 + place % 2))
                if branch:
                    episodes[-1].group = place % 2
                    episodes[-1].turns[0].edge.group = place % 2
            self.tasks.append(episodes)

    @property
    def episodes(self) -> list[Episode]:
        return list(chain.from_iterable(self.tasks))

    def _play(self, root: Node, start: Sequence[Turn], reward: float, length: int) -> Episode:
        turns, node = list(start), root
        context = root.context_ids
        for turn in turns:
            assert turn.edge.child is not None
            node = turn.edge.child
            context = (*turn.context, *turn.ids, *node.context_ids)
        for place in range(len(turns), length):
            ids = tokens(self._shuffler, self._shuffler.randint(2, 5))
            logprob = log_policy(self._model, context, ids, self._temperature)
            behaviour = tuple(each - self._shuffler.gauss(0, self._stale) for each in logprob.tolist())
            last = place == length - 1
            after = Node(node.state, self._shuffler.random(), tokens(self._shuffler, 2), terminated=last)
            name = " ".join(map(str, ids))
            edge = Edge(Action(name, name, "", ids, behaviour), 1.0, 0, 0.0, reward if last else 0.0, after)
            node.edges.append(edge)
            ratio = (logprob - torch.tensor(behaviour)).exp()
            turns.append(Turn(context, ids, node.value, edge, ratio, logprob))
            context, node = (*context, *ids, *after.context_ids), after
        for turn in turns:
            turn.edge.visits += 1
            turn.edge.value_sum += reward
        return Episode(turns, reward, new=len(start))


def log_policy(model: nn.Module, context: Sequence[int], ids: Sequence[int], temperature: float) -> Tensor:
    """log π of each of ``ids`` after ``context``, with its gradient."""
    whole = torch.tensor([[*context, *ids]])
    logits = model(input_ids=whole).logits[0, len(context) - 1 : -1] / temperature
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(ids)[:, None]).squeeze(1)


def clipped(ratio: Tensor, advantage: float, low: float = 0.2, high: float = 0.2) -> Tensor:
    """PPO's surrogate: min(ρ A, clip(ρ, 1 - ε, 1 + ε) A) of each token (Schulman et al. 2017, equation 7)."""
    return torch.min(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


def kl(ratio: Tensor) -> Tensor:
    """π_ref/π - log(π_ref/π) - 1 (Shao et al. 2024, equation 4), weighted by ρ; π_ref is the policy that sampled."""
    return ratio * (1 / ratio + ratio.log() - 1)


def standard(rewards: Sequence[float]) -> list[float]:
    return [(reward - fmean(rewards)) / stdev(rewards) for reward in rewards]


def grpo(samples: Samples, high: float = 0.2, beta: float = 0.04) -> Tensor:
    """Shao et al. 2024, equation 3: 1/G Σ_i 1/|o_i| Σ_t [min(ρ A, clip(ρ) A) - β KL], A = (R - mean R) / std R."""
    rows: list[Tensor] = []
    for group in samples.tasks:
        for one, advantage in zip(group, standard([one.reward for one in group]), strict=True):
            rows.append((clipped(one.ratio, advantage, high=high) - beta * kl(one.ratio)).mean())
    return -torch.stack(rows).mean()


def dapo(samples: Samples) -> Tensor:
    """Yu et al. 2025, equation 8: 1/Σ_i|o_i| Σ_i Σ_t min(ρ A, clip(ρ, 0.8, 1.28) A)."""
    every: list[Tensor] = []
    for group in samples.tasks:
        for one, advantage in zip(group, standard([one.reward for one in group]), strict=True):
            every.append(clipped(one.ratio, advantage, high=0.28))
    return -torch.cat(every).mean()


def left_out(group: Sequence[Episode]) -> Iterator[tuple[Episode, float]]:
    """Each episode with its advantage R_i - mean of the others' returns (Ahmadian et al. 2024, equation 8)."""
    for one in group:
        yield one, one.reward - fmean(other.reward for other in group if other is not one)


def rloo(samples: Samples) -> Tensor:
    """1/k Σ_i (R_i - mean of the others) log π(y_i), log π(y) = Σ_t log π(y_t), with clipped ratios for log π."""
    rows = [clipped(one.ratio, advantage).sum() for group in samples.tasks for one, advantage in left_out(group)]
    return -torch.stack(rows).mean()


def gae(one: Episode, gamma: float = 1.0, lambda_: float = 0.95) -> list[float]:
    """A_t = Σ_l (γλ)^l δ_{t+l}, δ_t = r_t + γ V(s_{t+1}) - V(s_t) (Schulman et al. 2016, equation 16)."""
    values = [turn.value for turn in one.turns]
    rewards = [0.0] * (len(one.turns) - 1) + [one.reward]
    errors = [r + gamma * after - v for r, v, after in zip(rewards, values, [*values[1:], 0.0], strict=True)]
    return [
        sum((gamma * lambda_) ** later * error for later, error in enumerate(errors[place:]))
        for place in range(len(errors))
    ]


def ppo(samples: Samples) -> Tensor:
    """Schulman et al. 2017, equation 7: the mean over time steps of min(ρ A, clip(ρ) A)."""
    every = [
        clipped(turn.ratio, advantage)
        for one in samples.episodes
        for turn, advantage in zip(one.turns, gae(one), strict=True)
    ]
    return -torch.cat(every).mean()


def tree_grpo(samples: Samples) -> Tensor:
    """Ji et al. 2025: A = A_intra + A_inter in GRPO's objective; a shared turn is trained once, with the mean A."""
    rows: list[Tensor] = []
    for task in samples.tasks:
        score = {id(one): each for one, each in zip(task, standard([one.reward for one in task]), strict=True)}
        for number in {one.group for one in task}:
            group = [one for one in task if one.group == number]
            for one, each in zip(group, standard([one.reward for one in group]), strict=True):
                score[id(one)] += each
        for one in task:
            terms: list[Tensor] = []
            for turn in one.turns[one.new :]:
                advantage = fmean(score[id(other)] for other in task if any(turn is each for each in other.turns))
                terms.append(clipped(turn.ratio, advantage) - 0.001 * kl(turn.ratio))
            rows.append(torch.cat(terms).mean())
    return -torch.stack(rows).mean()


Formula = Callable[[Samples], Tensor]
POLICY_GRADIENTS: dict[str, Formula] = {
    "flat_grpo": grpo,
    "dapo": dapo,
    "rloo": rloo,
    "ppo": ppo,
    "tree_grpo": tree_grpo,
}


def recipe(name: str, *settings: str) -> RunConfig:
    return load_config(find_recipe(f"baselines/{name}"), settings)


def gradient_norm(model: nn.Module, loss: Tensor) -> float:
    model.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    squares = [one.grad.square().sum() for one in model.parameters() if one.grad is not None]
    model.zero_grad()
    return math.sqrt(torch.stack(squares).sum().item())


@pytest.mark.parametrize("name", POLICY_GRADIENTS)
def test_the_loss_of_a_policy_gradient_is_its_papers(name: str, tokenizer: PreTrainedTokenizerFast) -> None:
    """The loss and its gradient, at the recipe's temperature, with some ratios clipped on either side."""
    config, model = recipe(name), make_model()
    samples = Samples(model, config.policy.temperature, stale=0.3, branch=name == "tree_grpo")
    ratios = torch.cat([one.ratio for one in samples.episodes])
    assert (ratios < 0.8).any() and (ratios > 1.28).any() and ((ratios > 1.2) & (ratios < 1.28)).any()
    metrics = first_step(config, model, tokenizer, samples, expected := POLICY_GRADIENTS[name](samples))
    assert metrics["loss"] == pytest.approx(expected.item(), abs=1e-6)
    assert ("kl" in metrics, "anchor" in metrics) == (name in ("flat_grpo", "tree_grpo"), False)


def first_step(
    config: RunConfig, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, samples: Samples, expected: Tensor
) -> Mapping[str, float]:
    """The metrics of the trainer's first step, whose gradient must be that of ``expected``."""
    norm = gradient_norm(model, expected)
    rows = [row for tree in samples.trees for row in scored_rows([tree], config.update.advantages)]
    assert len(rows) == len(samples.episodes)
    settings = replace(config.learner(GRPOConfig, config.update.grpo), max_steps=1, batch_size=len(rows), log_every=1)
    metrics = train_grpo(model, tokenizer, rows, settings, temperature=config.policy.temperature).metrics
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)
    return metrics


def test_ppo_asks_for_every_value_and_fits_it_to_lambda_returns() -> None:
    """V + A in each state, with GAE's A. A state that several episodes share gets the mean over them."""
    config = recipe("ppo")
    assert config.search.options["estimate_all"]
    [tree, _], [group, _] = (samples := Samples(make_model(), 1.0, stale=0.3)).trees, samples.tasks
    told = {
        row.token_ids[: place + 1]: target
        for row in value_rows(tree, config.update.values)
        for place, target in zip(row.value_positions, row.value_targets, strict=True)
    }
    expected = {group[0].turns[0].context: fmean(0.4 + gae(one)[0] for one in group)}
    for one in group:
        last = one.turns[-1].edge.child
        assert last is not None
        expected[(*one.turns[-1].context, *one.turns[-1].ids, *last.context_ids)] = one.reward
        for turn, advantage in zip(one.turns[1:], gae(one)[1:], strict=True):
            expected[turn.context] = turn.value + advantage
    assert told == pytest.approx(expected)


def test_rft_imitates_every_distinct_success(tokenizer: PreTrainedTokenizerFast) -> None:
    """Yuan et al. 2023: the mean of -log π over the tokens of all right answers, without duplicates."""
    config, model = recipe("rft"), make_model()
    samples = Samples(model, 1.0, stale=0.3)
    winners = [one for one in samples.episodes if one.reward >= 1]
    first = samples.trees[0].root.edges[0]
    samples.trees[0].root.edges.append(copy.deepcopy(first))  # the same success, sampled twice
    another = copy.deepcopy(first)  # a different success
    another.action = replace(another.action, text="other", call="other")
    samples.trees[0].root.edges.append(another)
    expected = -torch.cat([one.logprob for one in (*winners, winners[0])]).mean()
    norm = gradient_norm(model, expected)
    rows = [row for tree in samples.trees for row in imitation_rows(tree, config.update.imitation)]
    settings = replace(config.learner(SFTConfig, config.update.rft), max_steps=1, batch_size=len(rows), log_every=1)
    metrics = train_sft(model, tokenizer, rows, settings).metrics
    assert metrics["loss"] == pytest.approx(expected.item(), abs=1e-5)
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)


@pytest.mark.parametrize("name", ["trajectory_dpo", "tree_dpo"])
def test_the_loss_of_dpo_is_its_papers(name: str, tokenizer: PreTrainedTokenizerFast) -> None:
    """Rafailov et al. 2023, equation 7, on the best and the worst episode of a task, or on siblings whose Q differs
    (Agent Q). Of four siblings, the four widest pairs are the two best against the two worst."""
    config, model = recipe(name), make_model()
    samples = Samples(model, config.policy.temperature, stale=0.3)
    terms: list[Tensor] = []
    for group in samples.tasks:
        ranked = sorted(group, key=lambda one: -one.reward)
        if name == "trajectory_dpo":
            compared = [(ranked[0].ratio, ranked[-1].ratio)]
        else:
            compared = [(one.turns[0].ratio, two.turns[0].ratio) for one in ranked[:2] for two in ranked[2:]]
        for chosen, rejected in compared:
            terms.append(-logsigmoid(config.update.dpo.beta * (chosen.log().sum() - rejected.log().sum())))
    expected = torch.stack(terms).mean()
    norm = gradient_norm(model, expected)
    pairs = [pair for tree in samples.trees for pair in preference_pairs(tree, config.update.pairs)]
    settings = replace(config.learner(DPOConfig, config.update.dpo), max_steps=1, batch_size=len(pairs), log_every=1)
    metrics = train_dpo(model, tokenizer, pairs, settings, temperature=config.policy.temperature).metrics
    assert metrics["loss"] == pytest.approx(expected.item(), abs=1e-5)
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)
