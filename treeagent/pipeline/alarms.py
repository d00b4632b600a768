"""Alarms: signs that training goes wrong, in the figures of rounds and the metrics of updates: the echo trap of RAGEN
(Wang et al. 2025), in which spread and entropy fall before the reward does; repetition; malformed calls."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from treeagent.search.node import Tree, finished_paths, outcome, solved
from treeagent.views.figures import Figures, mean

_CUT_OFF, _LEFT_OUT = 0.2, 0.05
"""Shares of demonstrations that a limit of steps may end, and of their rows that may be too long."""
_EXPLAINED = 0.01
"""Share of the variance of returns below which a value head is no better than a constant."""


def alarms(history: Sequence[Figures]) -> list[str]:
    """Warnings about the last round with real trees against the first, from the ``tree_figures`` of all rounds."""
    searched = [figures for figures in history if "success" in figures]
    if len(searched) < 2 or "success" not in history[-1]:
        return []
    first, last = searched[0], searched[-1]
    warnings: list[str] = []

    def warn(name: str, figures: Mapping[str, str], cure: str) -> None:
        told = ", ".join(f"{words} from {first[key]:.2f} to {last[key]:.2f}" for key, words in figures.items())
        warnings.append(f"{name}: {told}: {cure}")

    narrower = last["reward_std"] < 0.7 * first["reward_std"]
    # The spread also falls when tasks are mastered, but then returns rise.
    worse = last["reward"] < first["reward"] - 0.02 or last["success"] < first["success"] - 0.05
    stuck = last["reward"] <= first["reward"] + 0.02 and last["entropy"] < 0.7 * first["entropy"]
    if narrower and (worse or stuck):
        spread = {"reward_std": "the spread of returns", "entropy": "the entropy", "reward": "the mean return"}
        cure = "take smaller steps, stronger anchors or more diverse tasks"
        warn("echo trap", {**spread, "success": "success"}, cure)
    if last["invalid"] > _alarm_threshold(first["invalid"], 0.2):
        cure = "anchor the update, or imitate valid steps for a while"
        warn("format", {"invalid": "the share of malformed or refused steps"}, cure)
    if last["repetition"] > _alarm_threshold(first["repetition"], 0.3):
        warn("repetition", {"repetition": "the share of what the agent said before"}, "take smaller steps")
    earlier = [figures["validation"] for figures in history[:-1] if "validation" in figures]
    if earlier and "validation" in last and last["validation"] <= max(earlier):
        if last["success"] > 0.95:
            fix = "search solves nearly all of its tasks: give it harder ones"
        elif narrower:
            fix = "the returns within a tree hardly differ: raise policy.temperature, search.limits or adapt.curriculum"
        else:
            fix = "search more tasks (collect.tasks), or learn from more rounds (adapt.replay)"
        warnings.append(
            f"plateau: {last['validation']:.0%} of the validation tasks succeed, {max(earlier):.0%} before: {fix}"
        )
    return warnings


def imagination_alarms(target: float, allowed: float) -> list[str]:
    """A warning if the audit allows a smaller share of imagined trees than the settings ask for."""
    if allowed >= target:
        return []
    return [
        f"imagination: {target:.0%} of the trees were to grow in the world model, but its audit allows {allowed:.0%}: "
        "the others are real; give it more steps to learn from (adapt.seed_tasks, world.training.max_steps)"
    ]


def training_alarms(rows: Sequence[Figures]) -> list[str]:
    """Warnings from the metrics of one update. Its best weights are kept, so a collapse shows only here."""
    warnings, names = list[str](), ("validation", "clip_ratio/region_mean", "kl")
    validations, clips, distances = ([row[name] for row in rows if name in row] for name in names)
    if validations and validations[-1] < min(0.5 * validations[0], validations[0] - 0.1):
        warnings.append(
            f"collapse: {validations[-1]:.0%} of the validation tasks succeed after the update's last step, "
            f"{validations[0]:.0%} before its first: lower the learning rate, or learn from more trees"
        )
    if (clipped := mean(clips)) > 0.3:
        warnings.append(
            f"clipping: {clipped:.0%} of the ratios are clipped: lower the learning rate, or learn from newer trees"
        )
    if max(distances, default=0.0) > 1.0:
        warnings.append(
            f"distance: KL from the behaviour policy reached {max(distances):.2f} nats a token: raise beta, or lower "
            "the learning rate"
        )
    return warnings


def value_alarms(explained: Sequence[float]) -> list[str]:
    if max(explained) >= _EXPLAINED:
        return []
    return [
        f"value head: it explains {max(*explained, 0.0):.0%} of the variance of held-out returns, so that search gains "
        "nothing from its estimates: search more tasks, or set environment.returns to the range of the returns"
    ]


def warm_start_alarms(cut_off: int, episodes: int, max_steps: int, taken: int, kept: int) -> list[str]:
    """Warnings about demonstrations that a limit ``cut_off``, and about their rows within ``warm_start.max_tokens``."""
    warnings: list[str] = []
    if episodes and cut_off >= _CUT_OFF * episodes:
        warnings.append(
            f"{cut_off / episodes:.0%} of the demonstrations were cut off by environment.max_steps={max_steps} or by "
            "the environment's own limit: raise it"
        )
    if taken - kept > _LEFT_OUT * taken:
        warnings.append(
            f"warm start: {taken - kept} of {taken} rows ({(taken - kept) / taken:.0%}) are longer than "
            "warm_start.max_tokens and left out: raise it to learn from them too"
        )
    return warnings


def refusal_sentence(trees: Iterable[Tree]) -> str:
    """A clause with the commonest answer to malformed or refused calls; empty if there were none."""
    nodes = (node for tree in trees for node in tree.nodes())
    refusals = Counter(node.state.messages[-1].content.strip() for node in nodes if node.invalid)
    if not refusals:
        return ""
    [(reason, count)] = refusals.most_common(1)
    return f"the commonest refusal, {count} of {refusals.total()}, is {reason!r:.200}"


def first_cause(stages: Mapping[str, Mapping[str, Any]], trees: Iterable[Tree]) -> str:
    """Likely reasons why an update has nothing to learn from these trees; empty if one holds a success, and one
    episodes with different returns. ``stages`` are the facts of the run's stages."""
    read = list(trees)
    if any(map(solved, read)):
        if any(len({round(outcome(path), 9) for path in finished_paths(tree)}) > 1 for tree in read):
            return ""
        return f"in none of {len(read)} trees do two episodes return different rewards (are the tasks too easy?)"
    warm = stages.get("warm_start", {})
    causes = [f"search found no success in {len(read)} trees", refusal_sentence(read)]
    if warm.get("demonstration_success") == 0.0:
        causes.insert(0, f"none of {warm['demonstrations']} demonstrations succeeded")
    return "; ".join(filter(None, causes))


def _alarm_threshold(share: float, least: float) -> float:
    return max(least, min(2 * share, (1 + share) / 2))
