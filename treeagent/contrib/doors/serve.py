"""``treeagent serve``: an OpenAI-compatible model that plans by search before it answers.

A conversation is an episode: the first message is that of a task, each answer an action, and each further message what
followed. It is replayed in the server's own environment, or continued in a world model (``evaluate.world``), and
searched from there without rewards. While a conversation follows its plan, it is not planned again, and where a plan
ends, the policy goes on greedily: for one seed these are the answers of ``treeagent eval``.
"""

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from secrets import token_hex
from typing import Annotated, Any

import typer
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from treeagent.cli.options import CheckpointName, Config, Overrides, Seed, Trust, chosen_settings, find_checkpoint
from treeagent.config import RunConfig, load_config
from treeagent.contrib.doors import wire
from treeagent.contrib.doors.speaker import loaded
from treeagent.contrib.doors.wire import Asked, Json, Said
from treeagent.envs.base import Env, opening
from treeagent.pipeline.build import env_dynamics, environment
from treeagent.pipeline.imagination import Imagination, with_planning_world, world_model
from treeagent.pipeline.terminal import Terminal
from treeagent.search.config import Limits
from treeagent.search.decide import best_path
from treeagent.search.node import Budget, Tree, path_return
from treeagent.search.searcher import make_search
from treeagent.types import Action, Dynamics, Message, State, Task, ToolCall, UserError, derive_seed

_KEPT = 4096  # plans that are remembered
app = typer.Typer()


@dataclass(slots=True)
class Job:
    """The planning of one answer."""

    limits: Limits | None = None
    budget: Budget = field(default_factory=Budget)
    """What it has spent so far."""
    value: float | None = None
    """The return of the plan by the policy's own values; None if an earlier plan or none was followed."""
    stopped: bool = False  # the client went away


class Planner:
    """Plans in an environment or a world model. One call at a time."""

    def __init__(self, checkpoint: Path, config: RunConfig, env: Env | None = None) -> None:
        config, actors, policy = loaded(checkpoint, config)
        if config.search.granularity == "split":
            raise UserError("treeagent serve plans in whole steps: set search.granularity=step")
        self.config, self.policy, self._actors, self.env = config, policy, actors, env or environment(config)
        self._imagines, self._search = bool(config.evaluate.world), config.search.by("mcts")
        self._real = env_dynamics(self.env, config, "evaluate", reveal_reward=False)
        self._blind: Dynamics = self._real
        if self._imagines:
            self._open = ExitStack()  # until this process ends
            self._blind = self._open.enter_context(world_model(*with_planning_world(config), self.env))
        self._plans = OrderedDict[tuple[object, ...], list[Action]]()
        """What is planned after the answers of an episode, by its task, its limits and these answers."""
        self._openings: dict[str, Task] = {}

    def task(self, place: object, first: str) -> Task:
        """The test task with an index, or the one that begins with a message."""
        if isinstance(place, int):
            return self.env.tasks("test", 1, place)[0]
        for task in () if self._openings else self.env.tasks("test", self.config.evaluate.tasks):
            observation, _ = self.env.reset(seed=task.seed, options={"task": task})
            self._openings[opening(task, observation).strip()] = task
        if (found := self._openings.get(first.strip())) is None:
            raise UserError(f"no task of evaluate.tasks begins with {first!r:.60}: give extra_body={{'task': INDEX}}")
        return found

    def answer(self, task: Task, said: Sequence[tuple[str, str]], job: Job) -> list[Action]:
        """The next action of an episode so far (each answer with what followed), with those planned after it."""
        return asyncio.run(self._answer(task, said, job))

    async def _answer(self, task: Task, said: Sequence[tuple[str, str]], job: Job) -> list[Action]:
        started, key = time.monotonic(), (task.id, job.limits, *(text for text, _ in said))
        state, actions = await self._state(task, said, job), self._plans.get(key)
        if actions is None:
            tree = await self._grow(task, state, len(said), job)
            path = best_path(tree, self.config.evaluate.decision, self.config.evaluate.weight)
            actions, job.value = [edge.action for edge in path], path_return(path, tree.discount) if path else None
        if not actions:
            [proposal] = await self._actors.greedy.propose([state], 1, [0])
            if proposal.error:
                raise UserError(proposal.error)
            actions = list(proposal.actions)
            job.budget.generated_tokens += proposal.generated_tokens
        for index in range(len(actions) + 1):
            self._plans[(*key, *(each.text for each in actions[:index]))] = actions[index:]
        while len(self._plans) > _KEPT:
            self._plans.popitem(last=False)
        job.budget.seconds = time.monotonic() - started
        return actions

    async def _state(self, task: Task, said: Sequence[tuple[str, str]], job: Job) -> State:
        """The state after an episode so far: replayed in the environment, or as the client tells it."""
        state, key = await self._real.reset(task), tuple[Any, ...]((task.id, job.limits))
        for text, followed in said:
            planned, key = self._plans.get(key, [])[:1], (*key, text)
            action = self.policy.grammar.read(text, self.policy.chat.encode_action(text))
            action = planned[0] if planned and planned[0].text == text else action
            if self._imagines:
                turn = Message("assistant", action.text, action.token_ids)
                state = State(task, (*state.messages, turn, Message("user", followed)))
                continue
            step = await self._real.step(state, action)
            state = step.state
            if step.terminated or step.truncated or state.messages[-1].content.strip() != followed.strip():
                raise UserError(
                    f"after the answer {text!r:.60} the environment says {state.messages[-1].content!r:.80}, not "
                    f"{followed!r:.80}, or the episode is over: it cannot go on from here"
                )
        return state

    async def _grow(self, task: Task, state: State, turn: int, job: Job) -> Tree:
        seed = derive_seed(derive_seed(self.config.seed, "evaluate"), "mcts", task.id)  # that of ``treeagent eval``
        settings = self._search if job.limits is None else replace(self._search, limits=job.limits)

        async def here(task: Task) -> State:
            return state

        search = make_search(
            self._actors.sampling, Imagination(here, self._blind), settings, self._actors.value, noise=False
        )

        def watch(trees: Sequence[Tree]) -> None:
            if job.stopped:
                raise UserError("the client went away")
            job.budget = trees[0].budget if trees else job.budget

        [tree] = await search.run([task], [derive_seed(seed, turn) if turn else seed], watch)
        job.budget = tree.budget
        if tree.error:
            raise UserError(f"planning failed: {tree.error}")
        return tree


class Agent:
    """Plays episodes by planning in an environment of its own, which nothing else may step.

    ``config`` is by default that of the run that the checkpoint is from, and ``env`` that of ``config``.
    """

    def __init__(self, checkpoint: str | Path, env: Env | None = None, config: RunConfig | None = None) -> None:
        folder = Path(checkpoint)
        self._planner = Planner(folder, config or load_config(folder.parent.parent / "config.toml"), env)
        self._task: Task | None = None
        self._said: list[tuple[str, str]] = []
        self._last = ""

    def begin(self, task: Task) -> None:
        """Begin an episode. Without it, the first observation tells which test task it is."""
        self._task, self._said, self._last = task, [], ""

    def act(self, observation: str, limits: Limits | None = None) -> str | ToolCall:
        """The next call, after what the last one led to."""
        if self._task is not None and self._last:
            self._said.append((self._last, observation))
        task = self._task = self._task or self._planner.task(None, observation)
        action = self._planner.answer(task, self._said, Job(limits))[0]
        self._last = action.text
        return action.call


class Server:
    """Answers requests one after the other."""

    def __init__(self, planner: Planner, model: str) -> None:
        self.planner, self.model, self._reader = planner, model, wire.Reader(model)
        self._worker = ThreadPoolExecutor(1, "plan")

    async def chat(self, request: Request) -> Response:
        asked = self._reader.read(await wire.body_of(request))
        rows = [each for each in asked.body["messages"] if each["role"] not in ("system", "developer")]
        if not rows or any((row["role"] == "assistant") != bool(index % 2) for index, row in enumerate(rows)):
            raise UserError("answers and what followed must alternate: give one message after each answer")
        texts, job = [str(row["content"]) for row in rows], Job(_limits(asked.body.get("budget")))

        def plan() -> list[Action]:
            task = self.planner.task(asked.body.get("task"), texts[0])
            return self.planner.answer(task, list(zip(texts[1::2], texts[2::2], strict=True)), job)

        work = asyncio.get_running_loop().run_in_executor(self._worker, plan)
        work.add_done_callback(lambda done: done.cancelled() or done.exception())  # the client may be gone
        if asked.body.get("stream"):
            return StreamingResponse(self._stream(request, asked, work, job), media_type="text/event-stream")
        async for _ in self._progress(request, work, job):
            pass
        if work.cancelled():
            raise HTTPException(499, "the client went away")
        return JSONResponse(wire.completion(_said(work.result(), job), self.model, _told(work.result(), job)))

    async def _progress(self, request: Request, work: asyncio.Future[list[Action]], job: Job) -> AsyncIterator[bytes]:
        """Events that tell what was spent, until the plan is made. A client that goes away stops it."""
        head: Json = {"id": "planning", "object": "chat.completion.chunk", "created": 0, "model": self.model}
        choice = {"index": 0, "delta": {}, "finish_reason": None}
        try:
            while not work.done() and not await request.is_disconnected():
                yield wire.event(head | {"choices": [choice]} | _told([], job))
                await asyncio.wait([work], timeout=0.2)
        finally:
            if not work.done():
                work.cancel()
                job.stopped = True

    async def _stream(
        self, request: Request, asked: Asked, work: asyncio.Future[list[Action]], job: Job
    ) -> AsyncIterator[bytes]:
        async for each in self._progress(request, work, job):
            yield each
        try:
            if not work.cancelled():
                for each in wire.chunks(_said(work.result(), job), asked, self.model, _told(work.result(), job)):
                    yield each
        except UserError as error:
            yield wire.event({"error": {"message": str(error), "code": 400}})


def _said(actions: Sequence[Action], job: Job) -> Said:
    return Said(f"chatcmpl-{token_hex(12)}", actions[0].text, "", (), "stop", 0, job.budget.generated_tokens)


def _told(actions: Sequence[Action], job: Job) -> Json:
    """What an answer says of its plan and of what it cost."""
    names = ("simulations", "generated_tokens", "environment_steps", "imagined_steps", "seconds")
    plan = {"value": job.value, "plan": [each.text for each in actions]}
    return {"treeagent": plan | {name: getattr(job.budget, name) for name in names}}


def _limits(budget: Any) -> Limits | None:
    """The limits that a request sets, such as ``extra_body={"budget": {"tokens": 800}}``."""
    try:
        named = {"generated_tokens" if name == "tokens" else name: value for name, value in (budget or {}).items()}
        return Limits(**named) if named else None
    except (AttributeError, TypeError, ValueError):
        raise UserError(f"{budget!r:.60} is no budget: give simulations, tokens, seconds as positive numbers") from None


@app.command("serve")
def serve_command(
    checkpoint: CheckpointName,
    overrides: Overrides = None,
    config: Config = None,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1.")] = 8701,
    key: Annotated[str, typer.Option(envvar="TREEAGENT_KEY", help="The api_key that clients must give.")] = "",
    seed: Seed = None,
    trust: Trust = False,
) -> None:
    """Serve a policy that plans by search in its environment before each answer, by OpenAI's chat completions.

    The first message is that of a test task (or extra_body={"task": INDEX}), each answer an action.
    extra_body={"budget": {"tokens": 800}} limits one answer's search.

    Example: treeagent serve runs/shop/checkpoints/dpo --port 8701
    """
    policy = find_checkpoint(checkpoint)
    settings = chosen_settings(config, overrides, seed, False, trust, Path("."), policy)
    server = Server(Planner(policy, settings), wire.model_name(policy))
    with wire.running(wire.application(server.model, key, {"/v1/chat/completions": server.chat}), port) as address:
        Terminal().print(f"model {server.model} at {address}/v1; Ctrl-C ends it")
        threading.Event().wait()
