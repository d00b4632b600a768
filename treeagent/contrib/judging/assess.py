"""Build the judge that the settings describe: a model on a server or in this process, and the ledger of its replies."""

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from treeagent.agent.checkpoint import load_checkpoint
from treeagent.contrib.judging.audit import require_cap
from treeagent.contrib.judging.cascade import Assessor
from treeagent.contrib.judging.config import JudgeConfig, RewardsConfig
from treeagent.contrib.judging.judge import Fault, Judge, JudgeModel
from treeagent.contrib.judging.ledger import FILE, Ledger, Reply
from treeagent.envs.base import Env, ToolSpec
from treeagent.generators.base import Failure, common_prefix
from treeagent.generators.chat import ChatFormat
from treeagent.generators.config import RemoteConfig
from treeagent.generators.local import LocalGenerator
from treeagent.types import Message, UserError

_RETRIES = 1
"""Retries of a failed request. A stage asks for many verdicts, so a judge that does not answer must not delay each."""


def assessor(config: RewardsConfig, run: Path, stage: str, env: Env | None = None) -> Assessor | None:
    """The assessor that judges how episodes ended, with the ledger in the run's folder. None if the settings name
    nothing that judges. Raises as ``judge_of`` and ``require_cap``."""
    if not config.assesses:
        return None
    return Assessor(config, judge_of(config, run, stage, env), require_cap(config, 0.0))


def judge_tools(config: RewardsConfig, env: Env) -> list[ToolSpec]:
    """The tools that the judge may call.

    Raises:
        UserError: the environment cannot go back to the end of an episode, or ``rewards.judge.tools`` names something
            other than a read-only tool of the environment.
    """
    names = () if config.judge is None else config.judge.tools
    if names and env.snapshot_kind == "none":
        raise UserError(
            f"rewards.judge.tools names {', '.join(names)}, but the environment cannot go back to where an episode "
            "ended (snapshot_kind 'none'): leave them out"
        )
    known = {tool.name: tool for tool in env.tools() if tool.read_only and not tool.answers}
    for name in names:
        if name not in known:
            found = ", ".join(known) or "none"
            raise UserError(
                f"rewards.judge.tools names {name!r}, but the read-only tools are {found}: name one of them"
            )
    return [known[name] for name in names]


def judge_of(config: RewardsConfig, run: Path, stage: str, env: Env | None = None) -> Judge | None:
    """The judge, with the ledger in the run's folder, which counts its calls under ``stage``. None if the settings name
    no judge. Without ``env`` it calls no tools.

    Raises:
        UserError: the ledger cannot be used, the judge's checkpoint cannot be loaded, or as ``judge_tools``.
    """
    if config.judge is None:
        return None
    model = local(config.judge.model) if config.judge.url is None else Remote(config.judge, config.judge.url)
    return Judge(config.judge, model, Ledger(run / FILE, stage), judge_tools(config, env) if env is not None else ())


def judge_figures(config: RewardsConfig, run: Path, stage: str) -> tuple[dict[str, float], list[str]]:
    """Figures of the judge's cost and verdicts in a stage, and one sentence for each reason for missing verdicts."""
    if config.judge is None or not (run / FILE).is_file():
        return {}, []
    ledger = Ledger(run / FILE, stage)
    figures = ledger.figures()
    ends = figures.get("judge/asked", 0.0)
    return figures, [
        f"the judge gave no verdict on {number} of {ends:.0f} ends: {reason}" for reason, number in ledger.reasons()
    ]


@dataclass(slots=True)
class Remote(JudgeModel):
    """A judge on a server. A server that cannot be reached is not asked again for ``timeout`` seconds."""

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
                    return [Fault(self._fault, made=False)] * len(conversations)
                if not isinstance(self._chat, RemoteChat):
                    server = RemoteConfig(timeout=config.timeout, url=self.url)
                    self._chat = RemoteChat(server, config.model, "rewards.judge", "rewards.judge", _RETRIES)
                chat = self._chat
            replies = chat.reply(
                conversations, 1, seeds, max_new_tokens=config.max_new_tokens, temperature=config.temperature
            )
        except UserError as error:  # every other request would fail in the same way
            with self._lock:
                self._fault, self._until = str(error), time.monotonic() + config.timeout
            return [Fault(str(error))] * len(conversations)
        results: list[Reply | Fault] = []
        for each in replies:
            if isinstance(each, Failure):
                results.append(Fault(each.reason))
                continue
            price = each.prompt_tokens * config.prompt_price + each.generated_tokens * config.generated_price
            results.append(Reply(each.texts[0], each.prompt_tokens, each.generated_tokens, price / 1e6))
        return results


@lru_cache(maxsize=1)
def local(model: str) -> "Local":
    """The judge's checkpoint, loaded once in each process."""
    loaded = load_checkpoint(model, merged=True)
    return Local(LocalGenerator(loaded.model), ChatFormat(loaded.tokenizer))


@dataclass(frozen=True, slots=True)
class Local(JudgeModel):
    """A judge in this process. Its verdict comes from its probabilities of yes and no. It answers one batch at a
    time."""

    generator: LocalGenerator
    chat: ChatFormat
    scores: ClassVar[bool] = True
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def reply(self, conversations: Sequence[Sequence[Message]], seeds: Sequence[int]) -> Sequence[Reply | Fault]:
        """Reply with P(yes) / (P(yes) + P(no)) at temperature 1, where each word counts with a small and a capital
        first letter. If the chat template opens a thought, it is closed first, because the first word of a thought is
        no answer."""
        with self._lock:  # covers the tokenizer, too: its switch for reading special tokens is shared by all threads
            words = [self.chat.encode(word) for word in ("yes", "Yes", "no", "No")]
            longest = max(words, key=len)
            prompts = [self.chat.prompt_ids(tuple(each)) + self.chat.closing for each in conversations]
            refused = [self.generator.refusal((*prompt, *longest[1:])) for prompt in prompts]
            read = [prompt for prompt, why in zip(prompts, refused, strict=True) if not why]
            if read:  # all questions share the text of the episode, which goes through the model only once
                self.generator.score([common_prefix(read)], [()])
            scored = iter(self.generator.score(read, [words] * len(read)))
            self.chat.forget()  # the ledger keeps the replies, so no prompt is read a second time
        return [
            Fault(why, made=False)
            if why
            else Reply(repr(_yes_probability([sum(each.logprobs) for each in next(scored)])), len(prompt))
            for prompt, why in zip(prompts, refused, strict=True)
        ]


def _yes_probability(logprobs: Sequence[float]) -> float:
    """The probability of yes, normalised over all ``logprobs``: the first two belong to yes, the others to no."""
    most = max(logprobs)
    shares = [math.exp(each - most) for each in logprobs]
    return sum(shares[:2]) / sum(shares)
