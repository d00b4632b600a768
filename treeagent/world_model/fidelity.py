"""How far a world model can be trusted, measured on real transitions that it has not learnt from, and which share of
imagined experience that allows: pure functions of (real, predicted) pairs, and ``audit``, which asks a model."""

import asyncio
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from treeagent.types import Action, Dynamics, Message, State, Task, Transition, Unanswered
from treeagent.world_model.trace import argument, words
from treeagent.world_model.transition import Experience, answered
from treeagent.world_model.wording import Answer

Kind = Callable[[Experience], str]
"""Gives the kind of a step's action, by which figures are grouped."""
TOLERANCE = 0.01
"""Rewards and returns that differ by no more than this are equal; a world model writes three decimals."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A real transition and the world model's answer to it."""

    real: Experience
    said: Answer | None
    """None if the answer was unreadable."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Means over pairs. All are in [0, 1] except ``reward_error``."""

    steps: int
    observation_agreement: float
    """See ``agreement``."""
    observation_exact: float
    """Share of observations predicted exactly, up to white space at the ends."""
    reward_accuracy: float
    """Share of rewards within ``TOLERANCE``."""
    reward_error: float
    """ε_R = E |r̂ - r|, in reward units. An unreadable answer counts as wrong by the whole range of rewards."""
    transition_error: float
    """ε_P, the mean of 1 - agreement, or of 1 if the end or the refusal is predicted wrong. DreamGym's bound asks how
    far s' is inconsistent with the domain, not whether every token is reconstructed."""
    termination_accuracy: float
    unreadable: float
    """Share of answers of no readable form."""


@dataclass(frozen=True, slots=True)
class Episode:
    """A real sequence of actions, and the same actions played in imagination from its first state."""

    real_return: float
    imagined_return: float | None
    """None if an answer was unreadable."""
    same_end: bool
    """Both end at the same step and in the same way: terminated or cut off."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What the model's errors can cost an update that is made in imagination, in units of return.

    DreamGym's theorem 1 bounds the real improvement J(π') - J(π) from below by the imagined gain, less these two terms,
    less a term for how far π' has moved from π. Both terms are worst cases and grow with the length of an episode.
    """

    reward: float
    """2 ε_R / (1-γ), from wrong rewards."""
    transition: float
    """4 γ R_max ε_P / (1-γ)², from wrong transitions."""


@dataclass(frozen=True, slots=True)
class Fidelity:
    """An audit's findings."""

    overall: Figures
    determined: Figures | None
    """Figures of the actions whose answers the history determines (those not ``free``); None if there are none."""
    openings: Figures | None
    """Figures of how tasks open, judged by consistency; None if none is held out. The figures above leave openings out,
    because a search starts from the environment's own."""
    by_kind: Mapping[str, Figures]
    compounding: Mapping[int, Figures]
    """Figures of the k-th imagined step in a row, k from 1, when the real actions are played."""
    optimism: float
    """Mean of imagined minus real return of the same actions. Above 0 the model promises too much."""
    wrong_episodes: float
    """See ``wrong_episodes``."""
    episodes: int
    cr: float | None
    """Share of the imagined successes that succeeded when replayed in the environment (Word2World); None if none was
    replayed."""
    lambda_cap: float
    """See ``lambda_cap``."""
    bound: Bound
    """What these errors can cost an update made in imagination."""

    def to_json(self) -> dict[str, Any]:
        """As JSON values: overall figures at the top level, tables below them."""
        told = asdict(self)
        overall: dict[str, Any] = told.pop("overall")
        return overall | told | {"compounding": {str(k): row for k, row in told["compounding"].items()}}


def agreement(real: Experience, said: str, *, free: bool = False) -> float:
    """How well a predicted observation agrees with the real one, in [0, 1].

    Usually F1 over words and numbers, each paired with the first word of its line. If the history does not determine
    the answer (``free``, such as the results of a query), consistency is judged instead, by the mean of three shares:
    format (lines whose form occurs in the real answer), relevance (the share of the action's words in the real answer
    that the prediction shows too) and history (lines that do not contradict what was shown before).
    """
    if said.strip() == real.observation.strip():
        return 1.0
    if not free:
        return _f1(Counter(_marked(said)), Counter(_marked(real.observation)))
    return (_format(real, said) + _relevance(real, said) + _history(real, said)) / 3


def _marked(text: str) -> list[tuple[str, str]]:
    """Each word with the first word of its line: a value under another heading is another value."""
    found: list[tuple[str, str]] = []
    for line in text.splitlines():
        spelled = re.findall(r"\w+|[^\w\s]", line.lower())
        found += [(spelled[0], word) for word in spelled]
    return found


def _f1(one: Counter[tuple[str, str]], other: Counter[tuple[str, str]]) -> float:
    """2 |A ∩ B| / (|A| + |B|)."""
    total = one.total() + other.total()
    return 2 * (one & other).total() / total if total else 1.0


def _format(real: Experience, said: str) -> float:
    known, lines = set(map(_form, real.observation.splitlines())), said.splitlines()
    return sum(_form(line) in known for line in lines) / len(lines) if lines else 0.0


def _form(line: str) -> str:
    """A line with every number as 0 and every run of words as one."""
    return re.sub(r"a(?: a)*", "a", re.sub(r"[^\W\d]+", "a", re.sub(r"\d+(?:\.\d+)?", "0", line)))


def _relevance(real: Experience, said: str) -> float:
    asked = set(words(argument(real.action))) & set(words(real.observation))
    return len(asked & set(words(said))) / len(asked) if asked else 1.0


def _history(real: Experience, said: str) -> float:
    """Share of lines without a contradiction. A line contradicts an earlier one that has the same words and other
    numbers; a number that begins the line is left out."""
    shown: dict[str, set[str]] = defaultdict(set)
    for message in real.history:
        for line in message.content.splitlines():
            shown[_form_of_words(line)].add(_unnumbered(line))
    lines = said.splitlines()
    good = [not (known := shown.get(_form_of_words(line))) or _unnumbered(line) in known for line in lines]
    return sum(good) / len(lines) if lines else 0.0


def _unnumbered(line: str) -> str:
    return re.sub(r"^\W*\d+\s+", "", line.strip().lower())


def _form_of_words(line: str) -> str:
    return re.sub(r"\d+(?:\.\d+)?", "0", _unnumbered(line))


def figures(
    pairs: Sequence[Pair], *, free: Collection[str] = (), kind: Kind = lambda one: one.kind, reward_span: float = 1.0
) -> Figures:
    """Means over pairs; at least one is needed.

    Args:
        free: kinds of action whose answers the history does not determine.
        reward_span: R_max, the reward error of an unreadable answer.
    """
    rows: list[tuple[float, ...]] = []
    for pair in pairs:
        real, said = pair.real, pair.said
        if said is None:
            rows.append((0.0, False, False, reward_span, 1.0, False, True))
            continue
        agrees = agreement(real, said.observation, free=kind(real) in free)
        exact = said.observation.strip() == real.observation.strip()
        off = abs(said.reward - real.reward)
        ends = said.terminated == real.terminated
        right = ends and said.invalid == real.invalid
        rows.append((agrees, exact, off <= TOLERANCE, off, 1 - agrees if right else 1.0, ends, False))
    return Figures(len(rows), *(sum(column) / len(rows) for column in zip(*rows, strict=True)))


def optimism(episodes: Sequence[Episode]) -> float:
    """Mean of imagined minus real return over the episodes with readable answers; 0 if there are none."""
    off = [one.imagined_return - one.real_return for one in episodes if one.imagined_return is not None]
    return sum(off) / len(off) if off else 0.0


def wrong_episodes(episodes: Sequence[Episode]) -> float:
    """Share of episodes whose imagined return is wrong or unreadable, or which end at another step: an episode that
    goes on where the real one was lost is what a search will look for."""
    wrong = [
        one.imagined_return is None or abs(one.imagined_return - one.real_return) > TOLERANCE or not one.same_end
        for one in episodes
    ]
    return sum(wrong) / len(wrong) if wrong else 1.0


def lambda_cap(wrong: float, episodes: int, ratio: float | None = None, *, noise: float = 0.05) -> float:
    """λ, the largest share of imagined experience that may be trained on: min(1, noise / q), and 0 if q ≥ 1/2.

    If a share λ of the episodes is imagined, and a share q of these is wrong, then a share λ q of all training labels
    is wrong. λ is the largest value that keeps this within ``noise``. From q = 1/2 on labels mislead more often than
    they inform.

    q is the upper end of the 95 % Wilson interval of ``wrong`` over ``episodes``, so that a small audit allows little.
    If imagined plans were replayed, q is at least 1 - CR (``ratio``): search seeks out the states where the model errs
    in the agent's favour, and an audit on other trajectories does not see these.
    """
    q = max(wilson_interval(wrong * episodes, episodes)[1], 1 - ratio if ratio is not None else 0.0)
    return 0.0 if q >= 0.5 else min(1.0, noise / q)


def wilson_interval(successes: float, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's score interval of a proportion (Wilson 1927), by default of 95 %. It is valid near 0 and 1, too; of no
    trials it is (0, 1)."""
    if not trials:
        return 0.0, 1.0
    share = successes / trials
    centre = share + z * z / (2 * trials)
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    return max((centre - spread) / scale, 0.0), min((centre + spread) / scale, 1.0)


def error_bound(reward_error: float, transition_error: float, horizon: int, reward_max: float = 1.0) -> Bound:
    """The bound for episodes of at most ``horizon`` steps without discount, which have γ = 1 - 1/H, so that
    1/(1-γ) = H."""
    discount = 1 - 1 / horizon
    return Bound(2 * reward_error * horizon, 4 * discount * reward_max * transition_error * horizon**2)


async def audit(
    model: Dynamics,
    held_out: Iterable[Experience],
    *,
    horizon: int,
    free: Collection[str] = (),
    kind: Kind = lambda one: one.kind,
    reward_span: float = 1.0,
    noise: float = 0.05,
    cr: float | None = None,
) -> Fidelity:
    """Ask a world model for every held-out transition, and for every held-out episode step by step on its own answers.

    Args:
        model: all steps are asked for at once, so it can answer them as one batch.
        held_out: real transitions and openings that the model never learnt from; at least one transition.
            Compounding errors and returns need whole episodes.
        horizon: most steps of an episode, for the bound.
        cr: share of imagined successes that succeeded in the environment too; None if none was replayed.
    """
    everything = list(held_out)
    kept, opened = ([one for one in everything if one.opens is opens] for opens in (False, True))

    def judge(pairs: Sequence[Pair]) -> Figures:
        return figures(pairs, free=free, kind=kind, reward_span=reward_span)

    def table(keyed: Iterable[tuple[Any, Pair]]) -> dict[Any, Figures]:
        groups: dict[Any, list[Pair]] = defaultdict(list)
        for name, pair in keyed:
            groups[name].append(pair)
        return {name: judge(group) for name, group in sorted(groups.items())}

    answers = await asyncio.gather(*(model.step(_state(one), _action(one)) for one in kept))
    pairs = [Pair(one, _answer(transition)) for one, transition in zip(kept, answers, strict=True)]
    begun = await asyncio.gather(*(_open(model, one) for one in opened))
    # A malformed turn is no step, so the chain that follows it begins within an episode and is left out.
    played = [chain for chain in chains(kept) if not chain[0].depth]
    rolled = await asyncio.gather(*(_roll(model, chain) for chain in played))
    episodes = [
        _episode(chain, imagined)
        for chain, imagined in zip(played, rolled, strict=True)
        if chain[-1].terminated or chain[-1].truncated
    ]
    overall, wrong = judge(pairs), wrong_episodes(episodes)
    determined = [pair for pair in pairs if kind(pair.real) not in free]
    return Fidelity(
        overall=overall,
        determined=judge(determined) if determined else None,
        openings=figures(begun, free=("opening",), kind=lambda _: "opening", reward_span=reward_span)
        if begun
        else None,
        by_kind=table((kind(pair.real), pair) for pair in pairs),
        compounding=table((k, pair) for chain in rolled for k, pair in enumerate(chain, 1)),
        optimism=optimism(episodes),
        wrong_episodes=wrong,
        episodes=len(episodes),
        cr=cr,
        lambda_cap=lambda_cap(wrong, len(episodes), cr, noise=noise),
        bound=error_bound(overall.reward_error, overall.transition_error, horizon, reward_span),
    )


def chains(experiences: Sequence[Experience]) -> list[list[Experience]]:
    """All episodes that the steps form: every path from a step without a predecessor to one without a successor."""
    following: dict[object, list[Experience]] = defaultdict(list)
    reached = {_after(one) for one in experiences}
    for one in experiences:
        following[_before(one)].append(one)
    found: list[list[Experience]] = []
    waiting = [[one] for one in experiences if _before(one) not in reached][::-1]
    while waiting:
        chain = waiting.pop()
        after = following.get(_after(chain[-1]), [])
        if after and not chain[-1].terminated:
            waiting += [[*chain, one] for one in reversed(after)]
        else:
            found.append(chain)
    return found


def _before(one: Experience) -> object:
    return one.task_id, one.history


def _after(one: Experience) -> object:
    said, heard = Message("assistant", one.action), Message("user", one.observation)
    return one.task_id, (*one.history, said, heard)


def _state(one: Experience) -> State:
    task, opening, *others = one.history
    return State(Task(one.task_id, task.content), (Message("user", f"{task.content}\n{opening.content}"), *others))


def _action(one: Experience) -> Action:
    return Action(one.action, one.action)


def _answer(transition: Transition) -> Answer | None:
    if transition.reward is None:
        return None
    observation = answered(transition.state.messages)
    return Answer(observation, transition.reward, transition.terminated, transition.invalid)


async def _open(model: Dynamics, one: Experience) -> Pair:
    task = Task(one.task_id, one.history[0].content)
    try:
        state = await model.reset(task)
    except Unanswered:
        return Pair(one, None)
    return Pair(one, Answer(state.messages[0].content.removeprefix(f"{task.prompt}\n")))


async def _roll(model: Dynamics, episode: Sequence[Experience]) -> list[Pair]:
    """Play an episode's actions from its first state, until the model ends it; all later states are imagined."""
    rolled: list[Pair] = []
    state = _state(episode[0])
    for one in episode:
        transition = await model.step(state, _action(one))
        rolled.append(Pair(one, _answer(transition)))
        state = transition.state
        if transition.terminated or transition.truncated:
            break
    return rolled


def _episode(real: Sequence[Experience], imagined: Sequence[Pair]) -> Episode:
    said = [pair.said for pair in imagined if pair.said is not None]
    readable = len(said) == len(imagined)
    return Episode(
        sum(one.reward for one in real),
        sum(one.reward for one in said) if readable else None,
        readable and len(said) == len(real) and said[-1].terminated == real[-1].terminated,
    )
