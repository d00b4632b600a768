"""The values every room shares, and the three protocols that search asks for.

Everything here is frozen: a state is a value, never a place. Token ids and log-probabilities are kept exactly as
they were sampled; nothing downstream tokenises an action again.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Literal, Protocol, get_args, runtime_checkable

Role = Literal["system", "user", "assistant"]
Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)
Origin = Literal["real", "imagined"]


class _ReachesOut:
    """Marks a setting whose value names code to run or a machine to contact. A settings file that the user did not
    name may not set it."""


REACHES_OUT = _ReachesOut()


class UserError(ValueError):
    """A value that cannot be used: one sentence names it and the fix, and the command line prints no more."""


class NothingToLearn(UserError):
    """Trees that an update can learn nothing from: no pairs, no advantages, too few rows. Other trees may do."""


class Unanswered(RuntimeError):
    """Nobody can tell what follows a step, as where a world model's answer cannot be read: to a search a dead end of
    unknown worth, not the end of its tree."""


class WorkerLost(RuntimeError):
    """A worker ended in the middle of a job: one sentence with what is known of it and the fix."""


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to be done in an environment."""

    id: str
    prompt: str
    """The instruction in words, as the agent reads it."""
    split: Split = "train"
    seed: int = 0
    """Seeds the environment's own randomness at reset."""
    data: Mapping[str, object] = field(default_factory=dict[str, object], repr=False)
    """What the environment and its verifier need, the answer included: plain JSON values, as trees store them. Never
    shown to the agent."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Role
    content: str
    token_ids: tuple[int, ...] = ()
    """The ids as a model sampled them; empty for text that no model sampled."""
    partial: bool = False
    """The turn goes on: its next token follows the last of ``token_ids``. Only a conversation's last turn may be so."""


def as_read(messages: Sequence[Message], left_out: Collection[int]) -> tuple[Message, ...]:
    """A conversation with a note in the place of each observation that ``left_out`` names."""
    return tuple(
        replace(message, content=f"[observation left out: {len(message.content)} characters]")
        if place in left_out
        else message
        for place, message in enumerate(messages)
    )


def storable(text: str) -> str:
    """Halves of surrogate pairs, which JSON can send and no file can hold, become question marks."""
    return text.encode(errors="replace").decode()


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of one of the environment's tools, in the OpenAI and MCP form."""

    name: str
    arguments: Mapping[str, object]


def only_text(schemas: Sequence[Mapping[str, object]]) -> str:
    """The argument of an environment's only tool, if that takes one text and nothing else: then a text that calls no
    tool stands for it. Empty otherwise.

    Args:
        schemas: JSON schema of the arguments of each tool.
    """
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
    """The part that touches the environment; the empty string when ``error`` is set, or in a thought alone, whose turn
    goes on with the next action."""
    thought: str = ""
    token_ids: tuple[int, ...] = ()
    """Sampled ids, the stop token included."""
    logprobs: tuple[float, ...] = ()
    """Behaviour log-probability of each token, in nats, at the sampling temperature. As long as ``token_ids``."""
    error: str = ""
    """Why ``text`` holds no well-formed call; a malformed call is data, not an exception."""
    forced: tuple[int, ...] = ()
    """Places in ``token_ids`` of tokens that were not sampled, but written to lead the turn into its call or to its
    end. They carry no loss, and their ``logprobs`` are 0."""

    @property
    def logprob(self) -> float:
        """log π(a|s), summed over tokens, in nats."""
        return sum(self.logprobs)


@dataclass(frozen=True, slots=True)
class State:
    """The conversation so far, and where the environment stands."""

    task: Task
    messages: tuple[Message, ...]
    key: str | None = None
    """Equal keys mean equal futures (anchor states); ``None`` where it is not known."""
    snapshot: object = field(default=None, compare=False, repr=False)
    """Opaque handle by which the dynamics that made this state finds it again."""
    paid: float = field(default=0.0, compare=False)
    """Sum of the rewards on the way here, which V(s) leaves out; withheld ones count as 0. It is 0 at an end of the
    task, where V(s) is the whole outcome. Search writes it."""
    ended: bool = field(default=False, compare=False)
    """Search came here by a step that ended the episode, or hit a limit: there is no next one."""
    legal_actions: tuple[str, ...] | None = field(default=None, compare=False, repr=False)
    """Every action that is possible here, as texts; ``None`` where the dynamics was not asked or cannot list them."""


@dataclass(frozen=True, slots=True)
class Transition:
    """What one step of a dynamics leads to."""

    state: State
    reward: float | None = 0.0
    """r; ``None`` where it is withheld, as at evaluation, where search must not see the verifier."""
    process: float = 0.0
    """Process reward (a milestone, a step's quality) beside the outcome; 0 where rewards are withheld."""
    terminated: bool = False
    """The environment ended the episode: the task is over."""
    truncated: bool = False
    """A limit was hit: of steps, of the environment's own, or of what the agent can read."""
    origin: Origin = "real"
    invalid: bool = False
    """The call was malformed or refused by the environment."""
    cost: int = 1
    """Environment steps paid, replayed ones included."""
    error: str = ""
    """Why the dynamics cannot tell what follows, such as a world model whose answer cannot be read. Nothing is known of
    the step's worth then, and it counts as no visit."""
    components: Mapping[str, float] = field(default_factory=dict[str, float])
    """Parts of the step's reward and its costs by name, as the dynamics gives them. ``outcome`` among them is the
    environment's own reward, where ``reward`` is a weighted sum."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A policy's candidates at one state."""

    context_ids: tuple[int, ...] = ()
    """Ids that the state adds after its last assistant message (all of them at the root); the full prompt is the
    concatenation of contexts and sampled actions along the path. Empty where the policy reads no tokens."""
    actions: tuple[Action, ...] = ()
    """The actions as sampled, duplicates included. With ``priors``, they are all that are possible, or more than were
    asked for: whoever wants n of them takes the first n."""
    error: str = ""
    """Why there are none: the state cannot be read, as one longer than the model's context. No action follows it."""
    left_out: tuple[int, ...] = ()
    """Places in the conversation of the observations that are left out from this state on. Where there are any, the
    prompt starts anew: ``context_ids`` are all of it."""
    untold_tokens: int = 0
    """Tokens sampled for the actions by a server that counts them and does not tell them."""
    priors: tuple[float, ...] = ()
    """P(a|s) of each action, where the policy knows them all; they sum to 1, and equal calls add up. Empty where
    search has to estimate them from what was sampled."""
    shared_tokens: int = 0
    """Tokens of the actions that went through the model once for several of them, as equal beginnings of scored
    actions do: the number of times that they were saved."""

    @property
    def generated_tokens(self) -> int:
        """Tokens sampled or scored for the actions, those of duplicates included."""
        return self.untold_tokens + sum(len(action.token_ids) for action in self.actions) - self.shared_tokens


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a value function says of one state."""

    value: float
    """V(s), the expected return from here on, in reward units."""
    context_ids: tuple[int, ...] = ()
    """As in ``Proposal``; empty where the value reads no tokens."""
    environment_steps: int = 0
    """Steps of a dynamics that the estimate took, as a rollout does."""
    generated_tokens: int = 0
    """Tokens sampled for it."""
    error: str = ""
    """Why the state cannot be read; ``value`` is then 0, since nothing can be done there."""
    left_out: tuple[int, ...] = ()
    """As in ``Proposal``."""


class Policy(Protocol):
    """Proposes actions. One call serves the frontier of many trees."""

    async def propose(self, states: Sequence[State], count: int, seeds: Sequence[int]) -> Sequence[Proposal]:
        """Draw ``count`` actions at each state; the draw at ``states[i]`` depends on ``seeds[i]`` alone. A policy that
        knows all actions that are possible may give them all, those drawn first (``Proposal.priors``)."""
        ...


@runtime_checkable
class Concurrent(Protocol):
    """Says of a policy or a value whether it answers many calls side by side in the time of one, as a server does. Then
    each tree asks it by itself, and waits for no other."""

    @property
    def concurrent(self) -> bool: ...


def is_concurrent(asked: object) -> bool:
    """Whether a policy or a value says that it is ``Concurrent``."""
    return isinstance(asked, Concurrent) and asked.concurrent


class Value(Protocol):
    """Estimates V(s) of many states at once."""

    async def estimate(self, states: Sequence[State]) -> Sequence[Estimate]: ...


class Critic(Protocol):
    """AI feedback: compares the candidates of a state with each other."""

    async def rank(self, states: Sequence[State], candidates: Sequence[Sequence[Action]]) -> Sequence[Sequence[float]]:
        """A score of each candidate of each state, in reward units."""
        ...


class Dynamics(Protocol):
    """What search steps through: an environment plays it, a world model imagines it. Search cannot tell which."""

    async def reset(self, task: Task) -> State: ...

    async def step(self, state: State, action: Action) -> Transition: ...


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed that depends on every part; equal parts give the equal seed on every machine."""
    text = "/".join(map(str, parts)).encode(errors="surrogatepass")  # a task that is refused later has a seed, too
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big") >> 1


class _Limit:
    """A time limit that can stand still."""

    def __init__(self, timeout: asyncio.Timeout, seconds: float) -> None:
        self._timeout, self._seconds = timeout, seconds
        self.timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        self.stop()
        # It ends a turn of the event loop late. So what came in time counts, even if a call, such as one of a model in
        # this process, has kept the loop from noticing.
        self.timer = asyncio.get_running_loop().call_later(self._seconds, self._timeout.reschedule, 0.0)

    def stop(self) -> None:
        self._timeout.reschedule(None)
        if self.timer is not None:
            self.timer.cancel()


_LIMIT: ContextVar[_Limit | None] = ContextVar("limit", default=None)


@asynccontextmanager
async def time_limit(seconds: float) -> AsyncIterator[None]:
    """A step of a dynamics, which is cancelled after ``seconds``; the time that it spends ``waiting`` does not count.

    Raises:
        TimeoutError: it took longer.
    """
    async with asyncio.timeout(None) as timeout:
        limit = _Limit(timeout, seconds)
        limit.begin()
        before = _LIMIT.set(limit)
        try:
            yield
        finally:
            _LIMIT.reset(before)
            if limit.timer is not None:
                limit.timer.cancel()


@contextmanager
def waiting() -> Iterator[None]:
    """Wait for one's turn: the time limit of the step stands still, and begins anew after it."""
    limit = _LIMIT.get()
    if limit is None:
        yield
        return
    limit.stop()
    try:
        yield
    finally:
        limit.begin()
