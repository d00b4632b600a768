"""Two doors, opened twice: an environment with four ends, and world models of it with scripted answers."""

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Literal, Protocol

from treeagent.envs.base import Env, StepResult, task_to_play
from treeagent.generators.turn import ReAct
from treeagent.types import Message, Proposal, Split, State, Task, ToolCall
from treeagent.world_model.experience import ExperienceModel
from treeagent.world_model.wording import Answer, Wording

WORDING = Wording(instructions="", reasoning=False)
PRIZES: Mapping[str, float] = {"ll": 0.0, "lr": 0.5, "rl": 0.0, "rr": 1.0}
"""Rewards of the ends, by the doors taken."""


class Doors(Env):
    """Actions are ``l`` and ``r``; the second one ends the task. "In the dark" there are three doors to open, and only
    "rrr" has the prize."""

    snapshot_kind: Literal["exact", "replay", "none"] = "exact"

    def __init__(self, prizes: Mapping[str, float] = PRIZES, breaks_at: str = "") -> None:
        self.prizes, self.breaks_at, self.taken, self.doors = prizes, breaks_at, "", 2
        self.steps = 0

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        self.taken, self.doors = "", doors(task_to_play(self, seed, options).prompt)
        return "two doors", {}

    def step(self, action: str | ToolCall) -> StepResult:
        self.steps += 1
        self.taken += str(action)
        if self.taken == self.breaks_at:
            raise RuntimeError("the door is stuck")
        if action not in ("l", "r"):
            self.taken = self.taken.removesuffix(str(action))
            return "no such door", 0.0, False, False, {"tool_error": "no such door"}
        ends = len(self.taken) == self.doors
        return seen(self.taken), self._prize() if ends else 0.0, ends, False, {}

    def _prize(self) -> float:
        return self.prizes[self.taken] if self.doors == 2 else float(self.taken == "rrr")

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        places = range(start, start + count)
        return [Task(f"doors-{split}-{place}", f"find {split} prize {place}", split, seed=place) for place in places]

    def demonstrator(self, noise: float) -> "Opener":
        return Opener(noise)

    def snapshot(self) -> object:
        return self.taken, self.doors

    def restore(self, snapshot: object, *, reseed: int | None = None) -> None:
        assert isinstance(snapshot, tuple)
        self.taken, self.doors = snapshot


@dataclass(frozen=True)
class Opener:
    """Takes the right door, unless it errs."""

    noise: float

    def act(self, rng: random.Random) -> tuple[str, str]:
        return "", "l" if rng.random() < self.noise else "r"


def doors(prompt: str) -> int:
    """The number of doors to take."""
    return 3 if "in the dark" in prompt else 2


def seen(taken: str) -> str:
    return f"behind door {' and door '.join(taken)}"


@dataclass
class Teller:
    """Answers by the doors taken: ``prize`` gives the reward of an end, ``sight`` the observation."""

    prize: Callable[[str], float] = lambda taken: PRIZES.get(taken, float(taken == "rrr"))
    sight: Callable[[str], str] = seen
    asked: int = 0

    async def write(self, prompts: Sequence[tuple[Message, ...]]) -> Sequence[str]:
        self.asked += len(prompts)
        return [WORDING.write(self.answer(prompt[-1].content)) for prompt in prompts]

    def reply(self, system: str, user: str) -> str:
        assert "You are the environment" in system
        return WORDING.write(self.answer(user))

    def answer(self, prompt: str) -> Answer:
        actions = [line.removeprefix("Action: ") for line in prompt.splitlines() if line.startswith("Action: ")]
        if actions[-1] not in ("l", "r"):
            return Answer("no such door", invalid=True)
        taken = "".join(action for action in actions if action in ("l", "r"))
        ends = len(taken) == doors(prompt)
        return Answer(self.sight(taken), self.prize(taken) if ends else 0.0, terminated=ends)


class Served(Protocol):
    """The replies behind a server."""

    def reply(self, system: str, user: str) -> str: ...


@contextmanager
def served(teller: Served) -> Iterator[str]:
    """The URL of a server with the OpenAI protocol that replies as ``teller`` does."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(
                {"object": "list", "data": [{"id": "teller", "object": "model", "created": 0, "owned_by": "me"}]}
            )

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            system, user = asked["messages"]
            assert system["role"] == "system"
            said = {"role": "assistant", "content": teller.reply(system["content"], user["content"])}
            choice = {"index": 0, "finish_reason": "stop", "message": said}
            self._send({"id": "a", "object": "chat.completion", "created": 0, "model": "teller", "choices": [choice]})

        def _send(self, answer: object) -> None:
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()


def teller_model(teller: Teller) -> ExperienceModel:
    return ExperienceModel(teller, WORDING, max_steps=2)


@dataclass(frozen=True)
class BothDoors:
    """Proposes both actions, with one token each."""

    logprobs: tuple[float, float] = (-0.7, -0.7)
    grammar: ReAct = field(default_factory=ReAct)

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        actions = tuple(
            self.grammar.read(self.grammar.write("", door), (token,), (logprob,))
            for token, (door, logprob) in enumerate(zip("lr", self.logprobs, strict=True), start=100)
        )
        return [Proposal((len(state.messages),), actions) for state in states]
