"""Where does tree search beat independent samples? One policy, evaluated at horizons of many lengths.

    .venv/bin/python -m benchmarks.sweep --seeds 0 1 2
    .venv/bin/python -m benchmarks.sweep --ladder minigrid --seeds 0 1 2

A ladder is an environment with rungs: kinds of tasks that need more and more decisions (``benchmarks.ladders``). For
each seed, a policy trained from scratch imitates a demonstrator that makes mistakes, at the ladder's training settings.
Its value head learns from how these demonstrations ended, and then from the policy's own trees. The policy is evaluated
at each rung alone. The horizon H of a rung is the mean length of the demonstrator's episodes without mistakes. Every
search method has the same limit of generated tokens per task and sees no reward.

The figures of a row explain its success. ``p`` is the share of sampled episodes that succeed, and q = p^(1/H).
``possible`` is the share of tasks that the demonstrator solves within the limit of an episode. In rows that keep trees,
"at 100 steps" is the success after the first 100 environment steps, and "at 10 s" that after the first 10 seconds if
each step took 0.1 s. What was spent later is cut off. A search without an end by then counts as failed, while an
evaluation continues its plan greedily. ``value_siblings`` is the chance that V prefers the sibling that leads to a
success.
"""

import random
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.anytime import moments
from benchmarks.command import parser, record_of, settings_of
from benchmarks.ladders import LADDERS, Rung
from benchmarks.record import Row, digest, outcome_row
from treeagent.config import Mode, RunConfig, load_config
from treeagent.generators.config import ActionSource
from treeagent.pipeline.build import environment, tasks_at
from treeagent.pipeline.collect import collect
from treeagent.pipeline.evaluate import EvaluationJob, evaluate_batch
from treeagent.pipeline.folder import Run
from treeagent.pipeline.processes import run_jobs
from treeagent.pipeline.progress import QuietProgress
from treeagent.pipeline.recipes import find_recipe
from treeagent.pipeline.update import fit_base
from treeagent.pipeline.warm_start import warm_start
from treeagent.search.config import Limits
from treeagent.search.node import Spent, Tree, reaches
from treeagent.search.record import from_record
from treeagent.store import read_as
from treeagent.types import Split
from treeagent.views.signal import signal_figures, value_signal

QUESTION = "From which horizon on does tree search beat independent samples, with a policy that learnt?"
_MOST_STEPS = 400
"""Limit of an episode of the demonstrator."""
STEP_SECONDS = 0.1
STEPS, SECONDS = (50, 100, 200, 400), (5, 10, 20, 40)
"""Limits of environment steps, and of seconds if each step takes ``STEP_SECONDS`` besides the time of the search."""
DEPTHS = (range(1, 5), range(5, 9), range(9, 17), range(17, 33))
"""Ranges of the depth at which V compares siblings, in steps from the root."""


@dataclass(frozen=True)
class Way:
    """A way to act."""

    mode: Mode
    search: Mapping[str, Any]
    """Settings of the search that differ from the run's."""
    actions: ActionSource = "sample"
    """How the policy proposes actions (``policy.actions``)."""


_LEGAL: Mapping[str, Any] = {"granularity": "split"}
"""With ``actions="score"``: the policy samples a thought, and then gives each legal action its probability."""
WAYS: dict[str, Way] = {
    "best_of_n": Way("best_of_n", {}),
    "mcts": Way("mcts", {}),
    "mcts_pruned": Way("mcts", {"prune_repeats": True}),
    "greedy": Way("greedy", {}),
    "rebase": Way("rebase", {}),
    "ab_mcts": Way("ab_mcts", {}),
    "mcts_legal": Way("mcts", _LEGAL, "score"),
    "mcts_legal_pruned": Way("mcts", {**_LEGAL, "prune_repeats": True}, "score"),
    "best_of_n_legal": Way("best_of_n", _LEGAL, "score"),
    "beam": Way("beam", {"candidates": 2}),
}


def main() -> None:
    options = parser(__doc__, "sweep")
    options.add_argument("--ladder", choices=list(LADDERS), default="tireworld")
    options.add_argument("--runs", type=Path, help="where the policies are trained; by default runs/NAME")
    options.add_argument("--rungs", nargs="+", metavar="RUNG", help="names of rungs; by default all")
    options.add_argument("--tokens", type=int, nargs="+", help="limits of a task; by default the ladder's")
    options.add_argument("--tasks", type=int, default=30, help="held-out tasks of each seed and rung")
    options.add_argument("--split", choices=["validation", "test"], default="test")
    options.add_argument("--only", nargs="+", choices=list(WAYS))
    options.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of every arm")
    arguments = options.parse_args()
    ladder = LADDERS[arguments.ladder]
    if arguments.ladder != "tireworld" and arguments.name == "sweep":
        arguments.name = f"sweep_{arguments.ladder}"
    runs = arguments.runs or Path("runs") / arguments.name
    by_name = {rung.name: rung for rung in ladder.rungs}
    if unknown := set(arguments.rungs or ()) - by_name.keys():
        options.error(f"{arguments.ladder} has no rung {min(unknown)!r}, but {', '.join(by_name)}")
    rungs = [by_name[name] for name in arguments.rungs or by_name]
    ways = arguments.only or [way for way in WAYS if ladder.circles or not way.endswith("_pruned")]
    with record_of(arguments, QUESTION) as record:
        for seed in arguments.seeds:
            config = load_config(find_recipe(ladder.recipe), [*ladder.settings, *arguments.set], seed=seed)
            with Run.create(runs / f"seed{seed}", config, resume=True) as run:
                checkpoint = train_policy(config, run)
            for rung, tokens, name in product(rungs, arguments.tokens or [ladder.tokens], ways):
                way = WAYS[name]
                settings = at_rung(config, rung, tokens, ladder.action_tokens, way)
                arm, more = (
                    f"{name}, {rung.name}, {tokens} tokens",
                    {"tasks": arguments.tasks, "split": arguments.split},
                )
                settings_hash = digest(settings_of(settings) | {"mode": way.mode} | more)
                if not record.has(arm, seed, settings_hash):
                    tasks_played = range(seed * arguments.tasks, (seed + 1) * arguments.tasks)
                    row = measure_arm(
                        settings, checkpoint, way.mode, (arm, seed, settings_hash), tasks_played, arguments.split
                    )
                    record.add(replace(row, figures={**row.figures, "tokens": tokens}))
                    rounded = {name: round(value, 2) for name, value in row.figures.items()}
                    steps, tokens_spent = row.environment_steps / row.tasks, row.generated_tokens / row.tasks
                    print(
                        f"seed {seed} {arm}: {100 * row.success:.0f} %, {steps:.0f} steps, {tokens_spent:.0f} tokens, "
                        f"{row.seconds:.0f} s, {rounded}",
                        flush=True,
                    )


def train_policy(config: RunConfig, run: Run) -> Path:
    """Train the policy, and its value head also on the policy's own trees of training tasks. Returns the checkpoint."""
    progress = QuietProgress()
    warm = warm_start(config, run, progress)
    collect(config, run, progress, warm)
    return fit_base(config, run, progress, warm)


def at_rung(config: RunConfig, rung: Rung, tokens: int, action_tokens: int, way: Way) -> RunConfig:
    """The settings of an evaluation at one rung."""
    base = config.environment
    environment = replace(base, options={**base.options, **rung.options}, max_steps=rung.max_steps)
    # Beam search and REBASE go down once. They are as wide as the limit allows for a plan of half of the steps.
    wide = max(2, tokens // (action_tokens * rung.max_steps // 2))
    options = {"beam": {"width": wide // 2}, "rebase": {"width": wide}}.get(way.mode, {})
    method = config.search.method if way.mode == "greedy" else way.mode
    settings: dict[str, Any] = {"method": method, "options": options, **way.search}
    search = replace(config.search, limits=Limits(generated_tokens=tokens), **settings)
    policy, evaluation = replace(config.policy, actions=way.actions), replace(config.evaluate, best_of=100_000)
    return replace(config, environment=environment, policy=policy, search=search, evaluate=evaluation)


def measure_arm(
    config: RunConfig, checkpoint: Path, mode: Mode, row_key: tuple[str, int, str], task_range: range, split: Split
) -> Row:
    """Evaluate an arm. Returns its row with its figures."""
    with tempfile.TemporaryDirectory() as folder:
        trees_at = None if mode == "greedy" else Path(folder)
        job = EvaluationJob(config, checkpoint, "sweep", 0, task_range, trees_at, mode, split=split)
        [(_, (outcomes, seconds))] = run_jobs(evaluate_batch, [job], config)
        trees = list(read_as(from_record, Path(folder), "sweep"))
    lengths = plan_lengths(config, task_range, split)
    figures = {
        "horizon": statistics.fmean(lengths),
        "possible": statistics.fmean(length <= config.environment.max_steps for length in lengths),
    }
    found = [outcome.success for outcome in outcomes if outcome.found]
    if trees:
        figures["found"] = len(found) / len(outcomes)
    if found:
        figures["taken"] = statistics.fmean(found)
    if trees:
        figures |= of_trees(trees, config.evaluate.weight)
    if mode == "best_of_n":
        figures["p"] = statistics.fmean(map(sampled, trees))
    return replace(outcome_row(*row_key, task_range.start, outcomes), seconds=seconds, figures=figures)


def plan_lengths(config: RunConfig, task_range: range, split: Split) -> list[int]:
    """The number of actions with which the demonstrator solves each task if it makes no mistakes, whatever the limit of
    the settings."""
    env, lengths = environment(replace(config, environment=replace(config.environment, max_steps=_MOST_STEPS))), []
    player = env.demonstrator(0.0)
    assert player is not None
    for task in tasks_at(env, split, task_range):
        env.reset(options={"task": task})
        steps, ended = 0, False
        while not ended:
            _, reward, terminated, truncated, _ = env.step(player.act(random.Random(0))[1])
            steps, ended = steps + 1, terminated or truncated
        assert terminated and reward > 0, f"the demonstrator fails at task {task.id}"
        lengths.append(steps)
    return lengths


def sampled(tree: Tree) -> float:
    """The share of the episodes in a tree of best-of-N that succeed."""
    outcomes = {id(node): path[-1].outcome for path, node in tree.walk() if path}
    ends = [outcomes.get(id(node)) for node in tree.order]
    return statistics.fmean(paid is not None and reaches(paid, 1.0) for paid in ends)


def of_trees(trees: Sequence[Tree], likelihood_weight: float) -> dict[str, float]:
    """Success at other limits, and the signal of V. ``likelihood_weight`` is that of the evaluation."""
    searches = [moments(tree, likelihood_weight) for tree in trees]

    def success(budget: float, cost: Callable[[Spent], float]) -> float:
        ends = [[moment.taken for moment in search if cost(moment.spent) <= budget] for search in searches]
        return statistics.fmean(bool(taken) and taken[-1] for taken in ends)

    figures = {f"at {budget} steps": success(budget, lambda spent: spent.steps) for budget in STEPS}
    figures |= {
        f"at {budget} s": success(budget, lambda spent: spent.seconds + STEP_SECONDS * spent.steps)
        for budget in SECONDS
    }
    for tree in trees:  # planning is over: reveal the rewards, to compare V with them
        for path, node in tree.walk():
            if path and node.final:
                path[-1].reward = path[-1].own_reward
    signal = value_signal(trees)
    for depths in DEPTHS:
        compared = [(row.siblings, row.pairs) for row in signal if row.depth in depths and row.siblings is not None]
        if compared:
            right, pairs = sum(share * count for share, count in compared), sum(count for _, count in compared)
            figures[f"value_siblings, depth {depths[0]} to {depths[-1]}"] = right / pairs
    return figures | signal_figures(signal)


if __name__ == "__main__":
    main()
