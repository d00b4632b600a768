"""What a proxy has heard: conversations as turns of token ids, kept in a journal and grown into trees.

A turn continues the turn whose ids begin its prompt, so a history that the client rewrote begins a branch. Plays of one
task become one tree. The journal is append-only and each turn is in it before it is answered, so a kill loses nothing.
"""

import math
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import orjson
from pydantic import TypeAdapter

from treeagent.contrib.doors.speaker import Format
from treeagent.contrib.doors.wire import Asked, Said, canonical, continued, digest
from treeagent.contrib.traces.transcripts import TranscriptMessage
from treeagent.pipeline.folder import COLLECTED, Run
from treeagent.pipeline.trees import write_trees
from treeagent.search.node import Edge, Node, Tree
from treeagent.store import appendable, read_as, shards
from treeagent.types import Action, Message, State, Task, UserError, storable

JOURNAL = "captured.jsonl"
_OPEN = 512  # groups of plays in memory; beyond it the one that was silent for longest is stored as it is
_SHARD = 16  # groups that are stored together
_ENDED = 4096  # episodes whose outcomes are remembered after they were stored, for requests that are sent again
_CALL = re.compile(r"call_[0-9a-f]{24}")


@dataclass(frozen=True, slots=True)
class Turn:
    """An answer with all that a tree needs of it."""

    said: Said
    parent: str
    """The id of the turn that the prompt continues; empty if it is the first."""
    context_ids: tuple[int, ...]
    """The ids of the prompt after that turn."""
    added: tuple[Message, ...]
    """The messages after that turn."""
    action: Action
    key: str  # ``Asked.key`` of the request
    thread: str  # ``Asked.threads[1]``
    tools: str  # ``Format.key`` of its tools

    @property
    def message(self) -> Message:
        return Message("assistant", self.action.text, self.action.token_ids)

    def says(self, message: TranscriptMessage) -> bool:
        """Whether an assistant's message repeats this turn: its calls, also if a text names them, or its text."""
        told, said = message.content.strip(), self.said
        if message.calls:
            return message.calls == said.calls and told in ("", said.content)
        named = _CALL.findall(told)
        return named[0] in dict(said.calls) if named else not said.calls and told == said.content


_TURN = TypeAdapter(Turn)


@dataclass(slots=True, eq=False)
class Play:
    """One episode of an agent."""

    id: str
    place: tuple[str, int]  # the task, and the number of its group among the open ones
    named: bool  # by the client
    turns: dict[str, Turn] = field(default_factory=dict[str, Turn])
    by: dict[str, list[Turn]] = field(default_factory=dict[str, list[Turn]])
    """The turns by the key and the thread of their request, by their text and by the ids of their calls."""
    names: set[str] = field(default_factory=set[str])  # its keys in ``Capture.threads``
    reward: float | None = None
    read: tuple[Turn | None, tuple[int, ...]] = None, ()
    """The turn that the latest prompt continued, and all ids up to its end."""

    def add(self, turn: Turn) -> None:
        self.turns[turn.said.id] = turn
        for name in (turn.key, turn.thread, turn.said.content, *(name for name, _ in turn.said.calls)):
            self.by.setdefault(name, []).append(turn)

    def chain(self, turn: Turn | None, start: Turn | None = None) -> list[Turn]:
        """The turns of a conversation up to this one, after ``start`` if that is one of them."""
        turns: list[Turn] = []
        while turn is not None and turn is not start:
            turns.append(turn)
            turn = self.turns.get(turn.parent)
        return turns[::-1]

    def prompt(self, turn: Turn | None, context: tuple[int, ...]) -> tuple[int, ...]:
        """All ids up to the end of ``context``, which follows a turn."""
        start, ids = self.read
        new = self.chain(turn, start)
        if turn is None or (new and not new[0].parent):
            ids = ()
        self.read = turn, (*ids, *chain.from_iterable((*one.context_ids, *one.action.token_ids) for one in new))
        return (*self.read[1], *context)

    def known(self, message: TranscriptMessage, previous: Turn | None) -> Turn | None:
        """The turn that an assistant's message repeats: by its call ids, or by its text. ``previous`` is the turn
        before it. None if the client changed what was said."""
        names = [name for name, _ in message.calls] or _CALL.findall(message.content) or [message.content.strip()]
        found = [turn for turn in self.by.get(names[0], ()) if turn.says(message)]
        before = "" if previous is None else previous.said.id
        return next((turn for turn in found if turn.parent == before), found[-1] if found else None)

    def longest(self, ids: tuple[int, ...]) -> tuple[Turn | None, tuple[int, ...]]:
        """The last turn whose ids begin ``ids``, and the ids after it."""
        best: Turn | None = None
        for turn in self.turns.values():  # each after the turn that it continues
            start = turn.context_ids + turn.action.token_ids
            if turn.parent == (best.said.id if best else "") and len(ids) > len(start) and ids[: len(start)] == start:
                best, ids = turn, ids[len(start) :]
        return best, ids


def read_prompt(play: Play, form: Format, asked: Asked) -> tuple[Turn | None, tuple[int, ...], tuple[Message, ...]]:
    """The prompt of a request in its episode: the turn that it continues, and the ids and the messages after that.
    Turns of the agent enter it by the ids that were sampled."""
    if asked.turn is not None and form.is_local:  # a conversation that goes on: its history is not written again
        begun = [turn for turn in play.by.get(asked.threads[0], ()) if turn.tools == form.key]
        if turn := next((each for each in begun if each.says(asked.messages[asked.turn])), None):
            own, short = turn.message, (*asked.opening, *asked.messages[asked.turn :])
            messages = form.messages(short, lambda _: own)
            return turn, form.chat.context_ids(messages), messages[len(asked.opening) + 1 :]
    previous: Turn | None = None

    def known(message: TranscriptMessage) -> Message | None:
        nonlocal previous
        previous = play.known(message, previous)
        return None if previous is None else previous.message

    messages = form.messages(asked.messages, known)
    parent, context = play.longest(form.chat.prompt_ids(messages))
    turns = [index for index, message in enumerate(messages) if message.role == "assistant"]
    said = sum(each.role == "assistant" for one in play.chain(parent) for each in (*one.added, one.message))
    return parent, context, messages[turns[said - 1] + 1 if said else 0 :]


class Capture:
    """The plays of a run, by the names under which clients ask for them."""

    def __init__(self, run: Run, policy: str, group: int) -> None:
        self.run, self.policy, self.group = run, policy, group
        self.forget: Callable[[], None] = lambda: None  # of the proxy: drops the texts of earlier conversations
        self.plays: dict[str, Play] = {}
        self.groups = OrderedDict[tuple[str, int], list[Play]]()
        """The plays of each task by n; the group that was silent for longest comes first."""
        self.threads: dict[str, Play] = {}
        """Plays by the ids of their answers and, if the client names no episode, by what continues them."""
        self.ended = OrderedDict[str, float]()
        self.closed: list[tuple[str, list[Play]]] = []
        self._count = 0
        self._trees = sum(read_as(lambda record: 1, run.trees, COLLECTED))
        self._file = appendable(run.path / JOURNAL)
        self._replay()

    def play(self, episode: str, task: str, asked: Asked) -> Play:
        """The play that a request belongs to. A name of the form TASK:PLAY names the task, too."""
        if not task and ":" in episode:
            task = episode.rpartition(":")[0]
        task = storable(task) or f"task-{digest(list(map(canonical, asked.opening)))[:12]}"
        if episode:
            if episode in self.ended and asked.key not in getattr(self.plays.get(episode), "by", ()):
                raise UserError(f"episode {episode!r:.60} has its outcome already: begin one of another name")
            return self.plays.get(episode) or self._begin(storable(episode), task, True)
        if asked.turn is not None:
            last = asked.messages[asked.turn]
            keys = [*(name for name, _ in last.calls), *_CALL.findall(last.content), continued(asked.threads[0], last)]
        else:
            keys = [asked.key]  # a first request again, unless its conversation has gone on
        found = next((self.threads[key] for key in keys if key in self.threads), None)
        if found is not None and found.reward is None and (asked.turn is not None or len(found.turns) < 2):
            return found
        return self._begin(f"play-{self._count + 1}", task, False)

    def _begin(self, name: str, task: str, named: bool) -> Play:
        self._count += not named
        places = [each for each in self.groups if each[0] == task]
        free = [each for each in places if len(self.groups[each]) < self.group]
        place = free[0] if free else (task, max((number for _, number in places), default=0) + 1)
        self.plays[name] = play = Play(name, place, named)
        self.groups.setdefault(play.place, []).append(play)
        if len(self.groups) > _OPEN:
            self._close(next(iter(self.groups)))
        return play

    def add(self, play: Play, turn: Turn) -> None:
        """Write a turn to the journal and make it part of its play."""
        if self.plays.get(play.id) is not play:
            raise UserError(f"episode {play.id!r:.60} was silent for long and is closed: begin another")
        self._write({"play": play.id, "task": play.place[0], "named": play.named, "turn": turn})
        self._take(play, turn)

    def _take(self, play: Play, turn: Turn) -> None:
        play.add(turn)
        names = [turn.said.id]
        if not play.named:
            told = TranscriptMessage("assistant", turn.said.content, calls=turn.said.calls)
            names += [continued(turn.thread, told), turn.key, *(name for name, _ in turn.said.calls)]
        play.names.update(names)
        self.threads.update(dict.fromkeys(names, play))
        if play.place in self.groups:
            self.groups.move_to_end(play.place)

    def end(self, episode: str, reward: float) -> None:
        """Record the outcome of an episode, which is named by its name or by the id of one of its answers."""
        if not math.isfinite(reward):
            raise UserError(f"the outcome of {episode!r:.60} is {reward}: give a finite number")
        play = self.plays.get(episode) or self.threads.get(episode)
        name = episode if play is None else play.id
        if (known := self.ended.get(name)) is not None:
            if known != reward:
                raise UserError(f"the outcome of {episode!r:.60} is {known:g} already, and is not changed")
            return
        if play is None:
            raise UserError(f"no episode {episode!r:.60} is known: name one by /e/NAME/v1, or by an answer's id")
        self._write({"outcome": play.id, "reward": reward})
        self._settle(play, reward)
        self._close_full(play.place)
        if len(self.closed) >= _SHARD:
            self.store()

    def _settle(self, play: Play, reward: float) -> None:
        play.reward = self.ended[play.id] = reward
        while len(self.ended) > _ENDED:
            self.ended.popitem(last=False)

    def _close_full(self, place: tuple[str, int]) -> None:
        plays = self.groups.get(place, [])
        if len(plays) >= self.group and all(each.reward is not None for each in plays):
            self._close(place)

    def _close(self, place: tuple[str, int]) -> None:
        plays = self.groups.pop(place)
        self.closed.append((place[0], plays))
        for play in plays:
            self.plays.pop(play.id, None)
            for name in play.names:
                self.threads.pop(name, None)

    def store(self, everything: bool = False) -> None:
        """Write the trees of closed groups, or of all, as a shard of the run."""
        while everything and self.groups:
            self._close(next(iter(self.groups)))
        if not self.closed:
            return
        index = len(shards(self.run.trees, COLLECTED))
        closed, self.closed = self.closed, []
        self._write({"stored": [play.id for _, plays in closed for play in plays], "shard": index})
        trees = [tree for task, plays in closed for tree in grown(task, plays)]
        for number, tree in enumerate(trees, start=self._trees):
            tree.seed, tree.policy = number, self.policy
        self._trees += len(trees)
        write_trees(self.run.trees, COLLECTED, index, trees)
        self.run.finish(COLLECTED, {"tasks": self._trees, "batches": index + 1, "value_signal": []})
        self.forget()

    def _write(self, row: Mapping[str, Any]) -> None:
        self._file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
        self._file.flush()

    def close(self) -> None:
        self.store(everything=True)
        self._file.close()

    def _replay(self) -> None:
        """Take up what the journal holds and no shard does. A last line that a kill cut off was never answered."""
        latest = {row["shard"]: number for number, row in self._rows() if "stored" in row}
        for number, row in self._rows():
            if "turn" in row:
                play = self.plays.get(row["play"]) or self._begin(row["play"], row["task"], row["named"])
                self._take(play, _TURN.validate_python(row["turn"]))
            elif "outcome" in row:
                self._settle(self.plays[row["outcome"]], row["reward"])
            elif latest[row["shard"]] == number and shards(self.run.trees, COLLECTED, row["shard"]):
                for name in row["stored"]:
                    if (stored := self.plays.get(name)) is not None and stored.place in self.groups:
                        self._close(stored.place)
                self.closed = []
        for place in [*self.groups]:
            self._close_full(place)

    def _rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        self._file.seek(0)
        end = 0
        for number, line in enumerate(self._file):
            if not line.endswith(b"\n"):
                self._file.truncate(end)
                return
            end += len(line)
            yield number, orjson.loads(line)


def grown(task: Task | str, plays: Sequence[Play]) -> list[Tree]:
    """The plays of a task as trees: one for all conversations that begin with the same ids. An outcome stands at the
    last turn of each conversation of its play; a path without one ends open, and no view learns from it."""
    trees: dict[tuple[int, ...], Tree] = {}
    for play in plays:
        first: dict[str, Turn] = {}
        for name, turn in play.turns.items():
            first[name] = first.get(turn.parent, turn)
        last = {first[name].context_ids: name for name in play.turns}
        continued = {turn.parent for turn in play.turns.values()}
        for name in [name for name in play.turns if name not in continued]:
            start = first[name]
            if (tree := trees.get(start.context_ids)) is None:
                prompt = next((each.content for each in start.added if each.role == "user"), "")
                named = Task(task, prompt) if isinstance(task, str) else task
                root = Node(State(named, start.added), context_ids=start.context_ids)
                tree = trees[start.context_ids] = Tree(root.state.task, 0, root)
            ends = last[start.context_ids] == name
            _lay(tree, play.chain(play.turns[name]), play.reward if ends else None)
    for node in (node for tree in trees.values() for node in tree.nodes()):
        for edge in node.edges:
            edge.prior = 1 / len(node.edges)
    return list(trees.values())


def _lay(tree: Tree, turns: Sequence[Turn], reward: float | None) -> None:
    """Add a path, along the edges that it shares with earlier ones."""
    node, task = tree.root, tree.task
    for turn, after in zip(turns, [*turns[1:], None], strict=True):
        if not any(turn.action is each for each in node.samples or ()):
            node.samples = [*(node.samples or ()), turn.action]
            tree.budget.proposals += 1
            tree.budget.generated_tokens += len(turn.action.token_ids)
        twins = [edge for edge in node.edges if edge.action.token_ids == turn.action.token_ids]
        edge = next((edge for edge in twins if _leads(edge, after, reward)), None)
        edge = edge or next((edge for edge in twins if edge.child is None), None)
        if edge is None:
            edge = Edge(turn.action, 1.0)
            node.edges.append(edge)
        invalid = bool(turn.action.error)
        messages = (*node.state.messages, turn.message)
        if edge.child is None and after is not None:
            state = State(task, (*messages, *after.added))
            edge.child = Node(state, context_ids=after.context_ids, invalid=invalid)
        elif edge.child is None and reward is not None:
            edge.child = Node(State(task, messages, ended=True), terminated=True, invalid=invalid)
            edge.reward = reward
        if reward is not None:
            edge.visits += 1
            edge.value_sum += reward
        node = edge.child or node
    tree.budget.simulations += reward is not None


def _leads(edge: Edge, after: Turn | None, reward: float | None) -> bool:
    """Whether an edge leads on as a path does: to the same next prompt, or to an end with the same reward."""
    child = edge.child
    if after is None:
        return reward is None or (child is not None and child.terminated and edge.reward == reward)
    return child is not None and not child.terminated and child.context_ids == after.context_ids
