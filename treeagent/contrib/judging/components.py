"""The components of a step's reward: those that every step has, those that rules give, and their weighted sum."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import pstdev
from typing import cast

from treeagent.contrib.guards.shield import FORBIDDEN
from treeagent.contrib.judging.config import AXES, DERIVED, JUDGED, TOOL_SCORES, RewardsConfig
from treeagent.envs import imported
from treeagent.search.node import Edge, Node, Tree, finished_paths
from treeagent.types import Action, Message, Task, Transition, UserError

Components = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an episode, as input of a rule or a judge."""

    task: Task
    history: tuple[Message, ...]
    """The conversation before the action."""
    action: Action
    observation: str
    """The environment's answer."""
    terminated: bool
    invalid: bool
    """The call was malformed or refused."""
    reward: float | None
    """The environment's own reward; None if it is withheld."""


Rule = Callable[[Step], float | None]


def read_rules(config: RewardsConfig) -> dict[str, Rule]:
    """Import the functions that ``rewards.rules`` names, by their component.

    Raises:
        UserError: one cannot be imported, or is not a function.
    """
    rules: dict[str, Rule] = {}
    for name, import_path in config.rules.items():
        found = imported(import_path, f"rewards.rules.{name}")
        if not callable(found):
            raise UserError(f"rewards.rules.{name} {import_path!r} is a {type(found).__name__}: name a function")
        rules[name] = cast(Rule, found)
    return rules


def rule_components(rules: Mapping[str, Rule], step: Step) -> dict[str, float]:
    """The values that the rules give a step. A rule that returns None is left out.

    Raises:
        UserError: a rule raised an exception, or returned something other than a finite number or None.
    """
    scores: dict[str, float] = {}
    for name, rule in rules.items():
        try:
            value: object = rule(step)
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise UserError(
                f"rule {name!r} of rewards.rules failed on a step of task {step.task.id} ({what}): let it return a "
                "finite number or None"
            ) from error
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise UserError(f"rule {name!r} of rewards.rules gave {value!r:.80}: return a finite number or None")
        scores[name] = float(value)
    return scores


def with_rules(components: Components, rules: Mapping[str, Rule], step: Step | None) -> dict[str, float]:
    """Components of a stored step with those of the rules evaluated again. Where a rule now returns None, its stored
    component is left out. Without a step, nothing changes.

    Raises:
        UserError: as ``rule_components``.
    """
    if step is None:
        return dict(components)
    others = {name: value for name, value in components.items() if name not in rules}
    return others | rule_components(rules, step)


def derived_components(action: Action, transition: Transition) -> dict[str, float]:
    """The components that follow from the step itself: ``outcome`` (the environment's reward), ``process``, ``steps``
    (1), ``tokens`` (sampled tokens), ``invalid`` (1 for a malformed or refused call) and ``forbidden`` (1 for a call
    that a shield refused)."""
    observation = transition.state.messages[-1].content
    refused = transition.invalid and observation.startswith(FORBIDDEN)
    return {
        "outcome": transition.reward or 0.0,
        "process": transition.process,
        "steps": 1.0,
        "tokens": float(len(action.token_ids) - len(action.forced)),
        "invalid": float(transition.invalid),
        "forbidden": float(refused),
    }


def components_of(edge: Edge, turn: Action | None = None) -> Components:
    """All components of a stored step: those that were stored, and those that can be computed from the step. A thought
    with its own edge has only its stored ones, because the other components belong to its turn's step.

    Args:
        turn: the ``whole_turn``, if the thought has an edge of its own.
    """
    child = edge.child
    if edge.thought or child is None or child.unknown:
        return edge.components
    if DERIVED[0] in edge.components:
        return edge.components
    arrived = Transition(child.state, edge.reward, edge.process, invalid=child.invalid)
    return {**derived_components(turn or edge.action, arrived), **edge.components}


def whole_turn(path: Sequence[Edge]) -> Action:
    """The turn that the last step of a path completes, with its thought if that has an edge of its own."""
    action = path[-1].action
    return action.after(path[-2].action) if len(path) > 1 and path[-2].thought else action


def stored_step(tree: Tree, path: Sequence[Edge]) -> Step | None:
    """The last step of a path as input of rules, as the search gave it to them; None for a thought alone and for a step
    without an answer."""
    edge, child = path[-1], path[-1].child
    if edge.thought or child is None or child.unknown:
        return None
    before = (path[-2].child if len(path) > 1 else None) or tree.root
    history = before.state.messages
    if history and history[-1].partial:
        history = history[:-1]
    observation = child.state.messages[-1].content
    turn = whole_turn(path)
    return Step(child.state.task, history, turn, observation, child.terminated, child.invalid, edge.outcome)


def known_names(config: RewardsConfig, declared: Sequence[str]) -> set[str]:
    """Names that may have a weight or a budget, if the environment declares the components ``declared``."""
    tools = TOOL_SCORES if config.tools else ()
    judged = JUDGED if config.judge else ()
    decided = ("verdict", *config.tiers) if config.tiers else ()
    learned = ("learned",) if config.learns else ()
    return {*DERIVED, *tools, *judged, *learned, *decided, *config.rules, *declared} - {"rule"}


def require_names(config: RewardsConfig, declared: Sequence[str]) -> None:
    """Check that every weight and budget names a component, if the environment declares the components ``declared``.

    Raises:
        UserError: a weight, a budget or ``rewards.rule`` names no component.
    """
    known = known_names(config, declared)
    if "rule" in config.tiers and config.rule not in known:
        raise UserError(f"rewards.rule names {config.rule!r}, which no step has: use one of {', '.join(sorted(known))}")
    for table, names in (("weights", config.weights), ("budgets", config.budgets)):
        for name in names:
            if name not in known:
                fix = "set rewards.tools=true" if name in TOOL_SCORES else f"use one of {', '.join(sorted(known))}"
                raise UserError(f"rewards.{table} names {name!r}, which no step has: {fix}")


def total(weights: Mapping[str, float], components: Components) -> float:
    """r = Σ_i w_i c_i over the components that the step has."""
    return sum(weight * components[name] for name, weight in weights.items() if name in components)


def is_unjudged(config: RewardsConfig, components: Components, ended: bool) -> bool:
    """Whether the reward of a step is unknown: the step ends an episode, and the judge, the reward model or the tiers
    have a weight but gave no verdict."""
    return ended and any(config.weights.get(name) and name not in components for name in config.awaited)


def path_sums(path: Sequence[Edge]) -> dict[str, float]:
    """The sum of each component along a path."""
    sums: dict[str, float] = {}
    for edge in path:
        for name, value in components_of(edge).items():
            sums[name] = sums.get(name, 0.0) + value
    return sums


def episode_components(path: Sequence[Edge]) -> dict[str, float]:
    """The sums of an episode's components and, as ``calls/AXIS``, the number of calls to which an axis applies. Empty
    if the steps store no components."""
    if not any(edge.components for edge in path):
        return {}
    calls = {f"calls/{axis}": float(sum(axis in edge.components for edge in path)) for axis in AXES}
    return path_sums(path) | {name: count for name, count in calls.items() if count}


def spreads(trees: Sequence[Tree], names: Sequence[str]) -> dict[str, float]:
    """The standard deviation of each component's sum over the finished paths of a task's trees. It is 1 if all sums are
    equal, so that dividing by it changes nothing."""
    sums = [path_sums(path) for tree in trees for path in finished_paths(tree)]
    found: dict[str, float] = {}
    for name in names:
        spread = pstdev([each.get(name, 0.0) for each in sums]) if sums else 0.0
        found[name] = spread if spread > 1e-9 else 1.0
    return found


class ComponentSums:
    """Sums of the components in trees, which are read one at a time."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._paths, self._sums = 0, defaultdict[str, float](float)
        self._calls, self._shares = Counter[str](), defaultdict[str, float](float)

    def reading(self, trees: Iterable[Tree]) -> Iterator[Tree]:
        """Yield the trees, and add each when it is read."""
        for tree in trees:
            self.add(tree)
            yield tree

    def add(self, tree: Tree) -> None:
        for _, edge in steps(tree):
            if edge.child is not None:
                self._names |= edge.components.keys()
                for axis in AXES:
                    if axis in edge.components:
                        self._calls[axis] += 1
                        self._shares[axis] += edge.components[axis]
        for path in finished_paths(tree):
            self._paths += 1
            for name, value in path_sums(path).items():
                self._sums[name] += value

    def figures(self) -> dict[str, float]:
        """Metrics with names that begin with ``component/``; empty if no step stores any component.

        A component's metric is its mean sum over a finished path. The axes ``when``, ``which`` and ``how`` are instead
        means over the calls to which they apply, so that each is a share.
        """
        figures = {f"component/{name}": self._sums[name] / self._paths for name in sorted(self._names) if self._paths}
        return figures | {f"component/{axis}": self._shares[axis] / calls for axis, calls in self._calls.items()}


def steps(tree: Tree) -> Iterator[tuple[Node, Edge]]:
    """Every edge of a tree with the node that it starts from."""
    for node in tree.nodes():
        for edge in node.edges:
            yield node, edge
