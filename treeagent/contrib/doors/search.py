"""Search behind the proxy: MCTS over the turns of an agent, each simulation a play of its program to the end.

PUCT descends the tree of the plays so far (``capture.grown``) to a state where a new answer looks best. The program is
played again: up to there, the proxy repeats the recorded answers, and then it samples. The world begins anew with the
program, so it needs no snapshots. The agent may keep no state beside its messages: it must ask the same again.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from treeagent.config import RunConfig
from treeagent.contrib.doors import wire
from treeagent.contrib.doors.capture import Capture, Play, Turn, grown
from treeagent.contrib.doors.proxy import Proxy
from treeagent.contrib.doors.speaker import loaded
from treeagent.contrib.doors.wire import Asked
from treeagent.envs.base import Env, EnvWrapper, StepResult
from treeagent.pipeline.build import environment, make_environment, tasks_at
from treeagent.pipeline.collect import SearchJob, batches
from treeagent.pipeline.folder import COLLECTED, Run
from treeagent.pipeline.terminal import Terminal
from treeagent.search import puct
from treeagent.search.node import Edge, Node, Tree, solved
from treeagent.search.searcher import describe
from treeagent.store import shards
from treeagent.types import State, Task, ToolCall, UserError, derive_seed

Program = Callable[[str, Env, Task], object]
"""Plays one episode of an agent: takes the ``base_url`` for its client, the world for its tools, and the task."""


class World(EnvWrapper):
    """The world of a program, which counts its steps and what they pay."""

    steps, paid = 0, 0.0

    def step(self, action: str | ToolCall) -> StepResult:
        result = self.env.step(action)
        self.steps, self.paid = self.steps + 1, self.paid + result[1]
        return result


class Plays(Capture):
    """The plays that go on, by the names in their addresses. The search keeps them itself, without a journal."""

    def __init__(self) -> None:
        self.plays = {}

    def play(self, episode: str, task: str, asked: Asked) -> Play:
        if (found := self.plays.get(episode)) is None:
            raise UserError("in a search, the program asks only by the base_url that it is given, and while it plays")
        return found

    def add(self, play: Play, turn: Turn) -> None:
        play.add(turn)

    def end(self, episode: str, reward: float) -> None:
        """Take no outcome of the program: the world tells it."""


@dataclass(frozen=True, slots=True)
class Search:
    """Grows a tree for each task."""

    program: Program
    plays: Plays
    config: RunConfig
    address: str
    idle: list[Env] = field(default_factory=list[Env])
    errors: list[str] = field(default_factory=list[str])
    """With which programs ended."""

    def grow(self, task: Task) -> Tree:
        world = self.idle.pop() if self.idle else make_environment(self.config.environment)
        tree, started, steps, done = Tree(task, 0, Node(State(task, ()))), time.monotonic(), 0, list[Play]()
        try:
            edge: Edge | None = None
            while (share := self.config.search.limits.share(tree.budget)) < 1 and not tree.root.exhausted:
                done.append(self._play(task, played := World(world), done, edge))
                tree, steps = grown(task, done)[0], steps + played.steps
                tree.budget.environment_steps, tree.budget.seconds = steps, time.monotonic() - started
                edge = branch(tree, self.config, len(done) / max(share, 1e-9))
        except Exception as error:  # the episode boundary: a failed rollout is data
            tree.error = describe(error)
        self.idle.append(world)
        tree.seed = derive_seed(self.config.seed, COLLECTED, task.id)
        return tree

    def _play(self, task: Task, world: World, done: Sequence[Play], edge: Edge | None) -> Play:
        """Play an episode that parts from an earlier one where that took ``edge``; without it, from the start."""
        play, before, asked = Play(f"{task.id}:{len(done)}", (task.id, 1), True), list[Turn](), ""
        for turns in [list(each.turns.values()) for each in done if edge is not None]:
            for number, turn in enumerate(turns):
                if edge is not None and turn.action is edge.action:
                    before, asked = turns[:number], turn.key
        for turn in before:
            play.add(turn)
        self.plays.plays[name := f"play-{id(play)}"] = play
        try:
            self.program(f"{self.address}/e/{name}/v1", world, task)
        except Exception as error:  # a part of what can happen in an episode
            self.errors.append(describe(error))
        del self.plays.plays[name]
        new = list(play.turns.values())[len(before) :]
        if edge is None and not new:
            raise UserError(f"the program ends before its agent asks by its base_url ({''.join(self.errors[-1:])})")
        if edge is not None and not (new and new[0].key == asked):
            raise UserError(
                f"the agent keeps state beside its messages: after the same {len(before)} answers it does not ask the "
                "same, so search cannot rewind it. Take clocks and random choices out of its messages, or learn from "
                "plays of treeagent proxy --group"
            )
        verdict = world.verify()
        play.reward = world.paid if verdict is None else verdict
        return play


def branch(tree: Tree, config: RunConfig, simulations: float) -> Edge:
    """An edge of the state where the next play samples another answer. ``simulations`` is how many the limits allow."""
    nodes, values, depth = [*tree.nodes()], puct.ValueRange(), max(len(path) for path, _ in tree.walk())
    for node in reversed(nodes):
        drawn, node.unseen = puct.sampled_edges(node.samples) if node.samples else ([], 0.0)
        priors = {puct.merge_key(edge.action): edge.prior for edge in drawn}
        for edge in node.edges:
            edge.prior = priors[puct.merge_key(edge.action)]
            values.include(edge.value)
        node.edge_visits, node.edge_values = node.visits, sum(edge.value_sum for edge in node.edges)
        closed = [edge.exhausted or edge.child is None for edge in node.edges]
        node.exhausted = node.unseen < puct.LEAST_UNSEEN and all(closed)
    node, c_init = tree.root, float(config.search.options.get("c_init", 1.0))
    c_init = puct.exploration_at_depth(c_init, simulations, depth)
    while config.search.method == "mcts":
        going = [edge for edge in node.edges if edge.child is not None]
        best, chosen = puct.puct_best(node, going, values, c_init)
        new = puct.new_action_score(node, values, c_init) if node.unseen >= puct.LEAST_UNSEEN else float("-inf")
        if chosen is None or chosen.child is None or new > best:
            return node.edges[0]
        node = chosen.child
    tree.root.exhausted = False
    return tree.root.edges[0]


def searched(
    checkpoint: str | Path, config: RunConfig, out: str | Path, program: Program, *, resume: bool = False
) -> None:
    """Search with the agent of a program: a tree for each of ``collect.tasks`` training tasks, in the run ``out``."""
    checkpoint, out = Path(checkpoint), Path(out)
    config, _, policy = loaded(checkpoint, config)
    if config.search.method not in ("mcts", "best_of_n") or config.rewards.function:
        raise UserError("behind the proxy, search.method is mcts or best_of_n, and the world alone gives rewards")
    env, plays = environment(config), Plays()
    proxy = Proxy(policy, plays, config, wire.model_name(checkpoint), None)
    with (
        Run.create(out, config, resume=resume) as run,
        wire.running(proxy.app("")) as address,
        ThreadPoolExecutor(32) as threads,
    ):
        run.record_checkpoint(COLLECTED, checkpoint)
        search, parts = Search(program, plays, config, address), batches(config, run, range(config.collect.tasks))
        for index, part in enumerate(parts):
            if shards(run.trees, COLLECTED, index):
                continue
            trees = list(threads.map(search.grow, tasks_at(env, "train", part)))
            broken = [f"the search of {tree.task.id} broke off: {tree.error}" for tree in trees if tree.error]
            if len(broken) == len(trees):
                raise UserError(broken[0])
            SearchJob(config, checkpoint, COLLECTED, index, part, run.trees).write(run.trees, trees)
            Terminal().print(f"{len(trees)} tasks searched, {sum(map(solved, trees))} solved")
            for why in (*broken, *search.errors):
                Terminal(stderr=True).print(why)
            search.errors.clear()
            policy.forget()
            plays.forget()
        run.finish(COLLECTED, {"tasks": config.collect.tasks, "batches": len(parts), "value_signal": []})
