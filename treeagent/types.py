"""Data types that all packages share, and the protocols that a search is built on.

A ``State`` is an immutable value, not a handle to a running environment. Token ids and log-probabilities are kept as
they were sampled; no later stage tokenises an action again.
"""

import math
import traceback
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, get_args

Role = Literal["system", "user", "person", "assistant"]
"""Who says a message. After the agent's first turn, "user" is the environment; "person" is someone who speaks to it."""
Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)
Origin = Literal["real", "imagined"]


REACHES_OUT = object()
"""Marks a setting whose value names code to run or a machine to contact. A settings file that the user did not name may
not set it."""


TURN_CUT_OFF = "the turn was cut off after"
"""Begins the error of an action whose turn reached ``policy.max_new_tokens``."""
CONTEXT_FULL = "but the model's context holds"
"""Stands in the error of an episode whose prompt became too long."""


class UserError(ValueError):
    """Raised for a value that cannot be used. The message is one sentence that names the value and the fix."""


class NothingToLearn(UserError):
    """Raised when trees hold nothing that an update can learn from. Other trees may work."""


class Unanswered(RuntimeError):
    """Raised when a dynamics cannot tell what follows a step. A search treats it as a dead end of unknown value."""


class WorkerLost(RuntimeError):
    """Raised when a worker process ended in the middle of a job, with the known reason and the fix."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task in an environment."""

    id: str
    prompt: str
    """The instruction in words, as the agent reads it."""
    split: Split = "train"
    seed: int = 0
    """Seed of the environment's own randomness at reset."""
    data: Mapping[str, object] = field(default_factory=dict[str, object], repr=False)
    """What the environment and its verifier need, as plain JSON values. Never shown to the agent."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Role
    content: str
    token_ids: tuple[int, ...] = ()
    """The ids as a model sampled them; empty for text that no model sampled."""
    partial: bool = False
    """The turn, the last of its conversation, is unfinished: its next token follows the last of ``token_ids``."""
    images: tuple[str, ...] = field(default=(), repr=False)
    """What is shown beside the text, as data URLs. Messages of a search share a string; a stored tree holds it once."""


def as_read(messages: Sequence[Message], left_out: Collection[int]) -> tuple[Message, ...]:
    """The conversation in which a note replaces each observation whose index is in ``left_out``."""
    return tuple(
        replace(message, content=f"[observation left out: {len(message.content)} characters]", images=())
        if index in left_out
        else message
        for index, message in enumerate(messages)
    )


def storable(text: str) -> str:
    """Replace lone surrogates, which UTF-8 files cannot hold, by question marks."""
    return text.encode(errors="replace").decode()


def raised_at(error: BaseException) -> str:
    """The line of the user's code that raised an exception, as " (FILE, line N: CODE)"; empty if only libraries did."""
    ours = (str(Path(__file__).parent), "site-packages", "lib/python")
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not any(o in each.filename for o in ours)]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno}: {frames[-1].line})" if frames else ""


def after_thought(reply: str) -> str:
    """What a model says after its thought in ``<think>`` tags; empty if the reply was cut off within the thought."""
    said = reply.rpartition("</think>")[2]
    return "" if "<think>" in said else said


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of one of the environment's tools, in the OpenAI and MCP form."""

    name: str
    arguments: Mapping[str, object]


def only_text(schemas: Sequence[Mapping[str, object]]) -> str:
    """The name of the argument, if the environment has a single tool (by its JSON ``schemas``) that takes one text
    alone; empty otherwise. A text that calls no tool is then read as this argument."""
    match list(schemas):
        case [{"properties": {**found}, "required": [str(name)]}] if list(found) == [name]:
            schema = found[name]
            return name if isinstance(schema, Mapping) and schema.get("type") == "string" else ""
    return ""


@dataclass(frozen=True, slots=True)
class Action:
    """One think/action step as sampled from a policy: an edge of the search tree."""

    text: str
    call: str | ToolCall
    """The part that is sent to the environment. Empty if ``error`` is set, or if the action is a thought alone."""
    thought: str = ""
    token_ids: tuple[int, ...] = ()
    """Sampled ids, the stop token included."""
    logprobs: tuple[float, ...] = ()
    """Behaviour log-probability of each token, in nats, at the sampling temperature."""
    error: str = ""
    """Why ``text`` holds no well-formed call. A malformed call is data, not an exception."""
    forced: tuple[int, ...] = ()
    """Indices into ``token_ids`` of inserted tokens. They carry no loss, and their ``logprobs`` are 0."""

    @property
    def logprob(self) -> float:
        """log π(a|s), summed over tokens, in nats."""
        return sum(self.logprobs)

    def after(self, thought: "Action") -> "Action":
        """The whole turn, if this action continues a turn that began with ``thought``."""
        text, token_ids = thought.text + self.text, thought.token_ids + self.token_ids
        forced = (*thought.forced, *(len(thought.token_ids) + index for index in self.forced))
        logprobs = thought.logprobs + self.logprobs
        return Action(text, self.call, thought.thought, token_ids, logprobs, self.error, forced)


@dataclass(frozen=True, slots=True)
class State:
    """The conversation so far, and the state of the environment after it."""

    task: Task
    messages: tuple[Message, ...]
    key: str | None = None
    """States with equal keys have equal futures (anchor states)."""
    snapshot: object = field(default=None, compare=False, repr=False)
    """Opaque handle with which the dynamics that made this state finds it again."""
    paid: float = field(default=0.0, compare=False)
    """Sum of the rewards on the path to this state; 0 at an end with a known reward. Set by the search."""
    ended: bool = field(default=False, compare=False)
    """Whether the step that led here ended the episode or hit a limit. Set by the search."""
    legal_actions: tuple[str, ...] | None = field(default=None, compare=False, repr=False)
    """Every action that is legal here, as texts; None if the dynamics was not asked for them or cannot list them."""
    place: str | None = field(default=None, compare=False, repr=False)
    """The environment's own key of this state (``Env.state_key``), without the steps used."""


class Transition(NamedTuple):  # as ``Estimate``, made in a quarter of the time of a frozen dataclass
    """The result of one step of a dynamics."""

    state: State
    reward: float | None = 0.0
    """r; None if it is withheld, as at evaluation, where the search must not see the verifier."""
    outcome: float | None = None
    """The environment's own reward, where a function of ``rewards.function`` gave ``reward``."""
    terminated: bool = False
    """The environment ended the episode: the task is over."""
    truncated: bool = False
    """A limit was hit: on the number of steps, one of the environment's own, or on what the agent can read."""
    origin: Origin = "real"
    invalid: bool = False
    """The call was malformed or refused by the environment."""
    cost: int = 1
    """Environment steps spent, including replayed steps."""
    error: str = ""
    """Why the dynamics cannot tell what follows. The step then does not count as a visit."""
    info: Mapping[str, object] = {}
    """What the environment says of the step beside its observation."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Candidate actions that a policy proposes at one state."""

    context_ids: tuple[int, ...] = ()
    """Token ids that the state adds to the prompt after its last assistant message; at the root, the whole prompt."""
    actions: tuple[Action, ...] = ()
    """The actions as sampled, duplicates included; all possible actions if ``priors`` are given."""
    error: str = ""
    """Why there are no actions: the policy cannot read the state, or the request failed."""
    left_out: tuple[int, ...] = ()
    """Indices of the messages whose observations are left out of the prompt from this state on. If there are any, the
    prompt starts anew, and ``context_ids`` holds all of it."""
    unlisted_tokens: int = 0
    """Tokens sampled for the actions by a server that returns their count but not their ids."""
    priors: tuple[float, ...] = ()
    """P(a|s) of each action, if the policy knows them all. Empty if the search must estimate them from the samples."""
    shared_tokens: int = 0
    """How many repetitions of tokens, such as a common prefix of scored actions, were saved."""
    failed: bool = False
    """Whether the request failed, for the reason in ``error``."""

    def __post_init__(self) -> None:
        if self.priors and not (min(self.priors) >= 0 and math.isclose(sum(self.priors), 1, abs_tol=1e-3)):
            raise ValueError(f"the priors {self.priors!r:.100} are no probabilities that sum to 1")

    @property
    def generated_tokens(self) -> int:
        """Tokens sampled or scored for the actions, without inserted ones (``Action.forced``)."""
        chosen = sum(len(action.token_ids) - len(action.forced) for action in self.actions)
        return self.unlisted_tokens + chosen - self.shared_tokens


class Estimate(NamedTuple):
    """A value function's estimate for one state."""

    value: float
    """V(s), the expected return from here on, in reward units."""
    context_ids: tuple[int, ...] = ()
    """As in ``Proposal``; empty if the value function reads no tokens."""
    environment_steps: int = 0
    generated_tokens: int = 0
    error: str = ""
    """Why the state cannot be read, or why a rollout's environment failed."""
    left_out: tuple[int, ...] = ()
    imagined_steps: int = 0
    unreadable: int = 0
    failed: bool = False
    """Whether a request failed, for the reason in ``error``: V(s) is unknown."""


class Policy(Protocol):
    """Proposes actions. One call covers states of many trees."""

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        """Sample ``count`` actions at each state, by ``seeds[i]`` alone at ``states[i]``. A policy that knows all
        possible actions may return all of them (``Proposal.priors``)."""
        ...


def is_concurrent(component: object) -> bool:
    """Whether a policy or a value says, by ``concurrent``, that it answers many calls in the time of one, as a server
    does."""
    return bool(getattr(component, "concurrent", False))


class Value(Protocol):
    """Estimates V(s) of many states at once."""

    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]: ...


class Dynamics(Protocol):
    """The transition function that a search steps through: a real environment or a world model."""

    async def reset(self, task: Task) -> State: ...

    async def step(self, state: State, action: Action) -> Transition: ...


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed that depends on every part. Equal parts give the same seed on every machine."""
    text = "/".join(map(str, parts)).encode(errors="surrogatepass")  # a task with surrogates is refused only later
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big") >> 1
