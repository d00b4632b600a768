"""Build the judge that the settings describe: a model on a server or in this process, and its ledger."""

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from treeagent.agent.checkpoint import load_checkpoint
from treeagent.envs.base import Env, ToolSpec
from treeagent.generators.base import Failure, common_beginning
from treeagent.generators.chat import ChatFormat
from treeagent.generators.config import RemoteConfig
from treeagent.generators.local import LocalGenerator
from treeagent.rewards.audit import require_cap
from treeagent.rewards.cascade import Assessor
from treeagent.rewards.config import JudgeConfig, RewardsConfig
from treeagent.rewards.judge import Fault, Judge, JudgeModel
from treeagent.rewards.ledger import FILE, Ledger, Reply
from treeagent.types import Message, UserError

_RETRIES = 1
"""A judge is asked about many ends: one that does not answer must not hold each of them up for long."""


def assessor(config: RewardsConfig, run: Path, stage: str, env: Env | None = None) -> Assessor | None:
    """What judges the ends of episodes in a run's folder; None where the settings name nothing that does. Raises as
    ``judge_of`` and ``require_cap`` do."""
    if not config.assesses:
        return None
    return Assessor(config, judge_of(config, run, stage, env), require_cap(config, 0.0))


def judge_tools(config: RewardsConfig, env: Env) -> list[ToolSpec]:
    """The tools that the judge may call.

    Raises:
        UserError: the environment cannot go back to the end of an episode, or one of them is no read-only tool of it.
    """
    named = () if config.judge is None else config.judge.tools
    if named and env.snapshot_kind == "none":
        raise UserError(
            f"rewards.judge.tools names {', '.join(named)}, but the environment cannot go back to where an episode "
            "ended (snapshot_kind 'none'): leave them out"
        )
    known = {tool.name: tool for tool in env.tools() if tool.read_only and not tool.answers}
    for name in named:
        if name not in known:
            found = ", ".join(known) or "none"
            raise UserError(
                f"rewards.judge.tools names {name!r}, but the read-only tools are {found}: name one of them"
            )
    return [known[name] for name in named]


def judge_of(config: RewardsConfig, run: Path, stage: str, env: Env | None = None) -> Judge | None:
    """The judge of a run's folder, whose calls count under ``stage``; None where the settings name none. Without
    ``env`` it calls no tools.

    Raises:
        UserError: the ledger cannot be used, the judge's checkpoint cannot be loaded, or as ``judge_tools``.
    """
    if config.judge is None:
        return None
    model = local(config.judge.model) if config.judge.url is None else Remote(config.judge, config.judge.url)
    return Judge(config.judge, model, Ledger(run / FILE, stage), judge_tools(config, env) if env is not None else ())


def judge_figures(config: RewardsConfig, run: Path, stage: str) -> tuple[dict[str, float], list[str]]:
    """What the judge of a stage has cost and said, and a sentence for each reason why ends have no verdict."""
    if config.judge is None or not (run / FILE).is_file():
        return {}, []
    ledger = Ledger(run / FILE, stage)
    figures = ledger.figures()
    asked = figures.get("judge/asked", 0.0)
    return figures, [
        f"the judge gave no verdict on {number} of {asked:.0f} ends: {reason}" for reason, number in ledger.reasons()
    ]


@dataclass(slots=True)
class Remote(JudgeModel):
    """A model on a server. A server that cannot be reached is not asked again before ``timeout`` seconds are over."""

    config: JudgeConfig
    url: str
    scores: ClassVar[bool] = False
    _chat: "object | None" = None
    _fault: str = ""
    _until: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def reply(self, conversations: Sequence[Sequence[Message]], seeds: Sequence[int]) -> Sequence[Reply | Fault]:
        from treeagent.generators.remote import RemoteChat

        config = self.config
        try:
            with self._lock:
                if time.monotonic() < self._until:
                    return [Fault(self._fault)] * len(conversations)
                if not isinstance(self._chat, RemoteChat):
                    server = RemoteConfig(timeout=config.timeout, url=self.url)
                    self._chat = RemoteChat(server, config.model, "rewards.judge", "rewards.judge", _RETRIES)
                chat = self._chat
            replies = chat.reply(
                conversations, 1, seeds, max_new_tokens=config.max_new_tokens, temperature=config.temperature
            )
        except UserError as error:  # every other request would meet it, too
            with self._lock:
                self._fault, self._until = str(error), time.monotonic() + config.timeout
            return [Fault(str(error))] * len(conversations)
        told: list[Reply | Fault] = []
        for each in replies:
            if isinstance(each, Failure):
                told.append(Fault(each.reason))
                continue
            price = each.prompt_tokens * config.prompt_price + each.generated_tokens * config.generated_price
            told.append(Reply(each.texts[0], each.prompt_tokens, each.generated_tokens, price / 1e6))
        return told


@lru_cache(maxsize=1)
def local(model: str) -> "Local":
    """The judge's checkpoint, loaded once in each process."""
    loaded = load_checkpoint(model)
    return Local(LocalGenerator(loaded.model), ChatFormat(loaded.tokenizer))


@dataclass(frozen=True, slots=True)
class Local(JudgeModel):
    """A model in this process, which says by its probabilities of yes and no. It answers one batch at a time."""

    generator: LocalGenerator
    chat: ChatFormat
    scores: ClassVar[bool] = True
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def reply(self, conversations: Sequence[Sequence[Message]], seeds: Sequence[int]) -> Sequence[Reply | Fault]:
        """P(yes) / (P(yes) + P(no)) at temperature 1, each word with a small or a capital first letter. A thought that
        the template opens is closed before: its first word is no answer."""
        with self._lock:  # the tokenizer's, too: whether marks are special tokens is one switch for all threads
            words = [self.chat.encode(word) for word in ("yes", "Yes", "no", "No")]
            longest = max(words, key=len)
            prompts = [self.chat.prompt_ids(tuple(each)) + self.chat.closing for each in conversations]
            refused = [self.generator.refusal((*prompt, *longest[1:])) for prompt in prompts]
            read = [prompt for prompt, why in zip(prompts, refused, strict=True) if not why]
            if read:  # the episode, which all questions share, goes through the model once
                self.generator.next_logprobs([common_beginning(read)], ())
            scored = iter(self.generator.score(read, [words] * len(read)))
            self.chat.forget()  # the ledger keeps the replies, so that no prompt is read again
        return [
            Fault(why) if why else Reply(repr(_yes([sum(each.logprobs) for each in next(scored)])), len(prompt))
            for prompt, why in zip(prompts, refused, strict=True)
        ]


def _yes(logprobs: Sequence[float]) -> float:
    """The probability of yes, from log-probabilities of which the first two are those of yes, the others those of
    no."""
    most = max(logprobs)
    shares = [math.exp(each - most) for each in logprobs]
    return sum(shares[:2]) / sum(shares)
