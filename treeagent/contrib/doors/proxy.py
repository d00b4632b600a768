"""``treeagent proxy``: an OpenAI-compatible server whose conversations become search trees."""

import asyncio
import os
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated

import orjson
import typer
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from treeagent.agent.policy import LLMPolicy
from treeagent.cli import options
from treeagent.config import RunConfig
from treeagent.contrib.doors import wire
from treeagent.contrib.doors.capture import Capture, Play, Turn, read_prompt
from treeagent.contrib.doors.speaker import Speaker, loaded
from treeagent.contrib.doors.wire import Asked, Json
from treeagent.generators.base import Failure
from treeagent.pipeline.folder import COLLECTED, Run, checkpoint_name
from treeagent.pipeline.terminal import Terminal
from treeagent.seams import resolve
from treeagent.types import UserError, derive_seed

Verifier = Callable[[list[Json], str], float | None]
"""Takes the messages of a conversation and its task; returns the outcome, or None while the episode goes on."""
app = typer.Typer()


class Proxy:
    """Answers by a policy and captures what it says."""

    def __init__(self, policy: LLMPolicy, capture: Capture, config: RunConfig, model: str, verifier: Verifier | None):
        self.speaker, self.capture, self.config, self.model = Speaker(policy, config), capture, config, model
        self.verifier, self.reader = verifier, wire.Reader(model)
        capture.forget = self.speaker.forget
        self._asked: dict[tuple[str, str], asyncio.Task[Turn]] = {}  # what is being answered, by play and key

    async def chat(self, request: Request) -> Response:
        asked = self.reader.read(await wire.body_of(request))
        episode = request.path_params.get("episode", "") or request.headers.get("x-treeagent-episode", "")
        play = self.capture.play(episode, request.headers.get("x-treeagent-task", ""), asked)
        if asked.key in play.by:
            turn = play.by[asked.key][0]
        else:
            place = play.id, asked.key
            if place not in self._asked:
                task = self._asked[place] = asyncio.create_task(self._answer(play, asked))
                task.add_done_callback(lambda done: self._asked.pop(place, None))
            turn = await asyncio.shield(self._asked[place])  # a client that goes away may ask again
        told = {"treeagent": {"episode": play.id, "task": play.place[0]}}
        if asked.body.get("stream"):
            return StreamingResponse(wire.chunks(turn.said, asked, self.model, told), media_type="text/event-stream")
        return JSONResponse(wire.completion(turn.said, self.model, told))

    async def _answer(self, play: Play, asked: Asked) -> Turn:
        form = self.speaker.format(asked.tools)
        parent, context, added = read_prompt(play, form, asked)
        prompt = play.prompt(parent, context)
        if refusal := self.speaker.generator.refusal(prompt):
            raise UserError(f"context_length_exceeded: {refusal}")
        seed = derive_seed(self.config.seed, "proxy", play.id, asked.key)
        sample = await self.speaker.sample(play.id, form, asked, prompt, seed)
        if isinstance(sample, Failure):
            raise HTTPException(503, f"the model did not answer: {sample.reason}")
        action, said = form.read(sample, asked, len(prompt))
        turn = Turn(
            said, parent.said.id if parent else "", context, added, action, asked.key, asked.threads[1], form.key
        )
        self.capture.add(play, turn)
        if self.verifier is not None and play.reward is None:
            message = wire.completion(said, self.model, {})["choices"][0]["message"]
            reward = await asyncio.to_thread(self.verifier, [*asked.body["messages"], message], play.place[0])
            if reward is not None:
                self.capture.end(play.id, float(reward))
        return turn

    async def outcomes(self, request: Request) -> Response:
        try:
            row = orjson.loads(await wire.body_of(request))
            episode = str(request.path_params.get("episode") or row.get("episode") or row["answer"])
            reward = float(row["reward"])
        except (ValueError, TypeError, KeyError, AttributeError):
            raise UserError('send {"episode": NAME, "reward": NUMBER}, or the id of an "answer" of it') from None
        self.capture.end(episode, reward)
        return JSONResponse({"episode": episode, "reward": reward})

    def app(self, key: str) -> Starlette:
        return wire.application(self.model, key, {"/v1/chat/completions": self.chat, "/v1/outcomes": self.outcomes})


@contextmanager
def proxied(
    checkpoint: str | Path,
    config: RunConfig,
    out: str | Path,
    *,
    group: int = 8,
    verifier: Verifier | None = None,
    key: str = "",
    port: int = 0,
    resume: bool = True,
) -> Iterator[str]:
    """Context in which a proxy runs in this process; yields its address, such as ``http://127.0.0.1:8700``. At its end
    all trees are in the run ``out``."""
    checkpoint, out = Path(checkpoint), Path(out)
    config, _, policy = loaded(checkpoint, config)
    with Run.create(out, config, resume=resume) as run:
        run.record_checkpoint(COLLECTED, checkpoint)
        capture = Capture(run, checkpoint_name(checkpoint, out), group)
        proxy = Proxy(policy, capture, config, wire.model_name(checkpoint), verifier)
        with closing(capture), wire.running(proxy.app(key), port) as address:
            yield address


def send_outcome(base_url: str, reward: float) -> None:
    """Send the outcome of an episode to the proxy: its ``base_url`` (``http://127.0.0.1:PORT/e/EPISODE/v1``) and its
    reward. A proxy with a key finds it in ``OPENAI_API_KEY``."""
    headers = {"content-type": "application/json", "authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', '')}"}
    body = orjson.dumps({"reward": reward})
    asked = urllib.request.Request(f"{base_url.rstrip('/')}/outcomes", body, headers)
    with urllib.request.urlopen(asked) as answer:
        answer.read()


@app.command("proxy")
def proxy_command(
    checkpoint: options.CheckpointName,
    out: options.Out,
    overrides: options.Overrides = None,
    config: options.Config = None,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1.")] = 8700,
    group: Annotated[int, typer.Option(min=1, metavar="N", help="Plays of one task that become one tree.")] = 8,
    verifier: Annotated[str | None, typer.Option(metavar="MODULE:NAME", help="A function that gives outcomes.")] = None,
    search: Annotated[str | None, typer.Option(metavar="MODULE:NAME", help="A program to search with.")] = None,
    key: Annotated[str, typer.Option(envvar="TREEAGENT_KEY", help="The api_key that clients must give.")] = "",
    seed: options.Seed = None,
    resume: options.Resume = False,
    trust: options.Trust = False,
) -> None:
    """Serve a policy to any agent by OpenAI's chat completions, and keep what it says as search trees.

    Point the agent's base_url to http://127.0.0.1:PORT/e/EPISODE/v1, where EPISODE is a name such as TASK:1. Send its
    outcome to /e/EPISODE/v1/outcomes, or let a verifier give it from (messages, task). Then show, export, update read
    RUN. With --search, a program (base_url, world, task) plays the agent, and search chooses where it answers anew.

    Example: treeagent proxy Qwen/Qwen3-0.6B --port 8700 --out runs/agent
    """
    policy = options.find_checkpoint(checkpoint)
    own = config or policy.parent.name == "checkpoints" or (resume and (out / "config.toml").is_file())
    added = [*([] if own else ["policy.format=tools"]), *(overrides or ())]
    settings = options.chosen_settings(config, added, seed, resume, trust, out, policy)
    if search is not None:
        from treeagent.contrib.doors.search import searched  # imports this module

        return searched(policy, settings, out, resolve("search.method", search, {}), resume=resume)
    check: Verifier | None = None if verifier is None else resolve("rewards.function", verifier, {})
    with proxied(policy, settings, out, group=group, verifier=check, key=key, port=port, resume=resume) as address:
        Terminal().print(f"model {wire.model_name(policy)} at {address}/v1, trees in {out}; Ctrl-C ends it")
        threading.Event().wait()
