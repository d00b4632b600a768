"""Measure a world model's errors on held-out real transitions, and derive the share of imagined experience that these
errors allow. The measures are pure functions of (real, predicted) pairs; ``audit`` collects the pairs from a model."""

import asyncio
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from treeagent.types import Action, Dynamics, Message, State, Task, Transition, Unanswered
from treeagent.world_model.trace import argument, words
from treeagent.world_model.transition import Experience, last_answer
from treeagent.world_model.wording import Answer

Kind = Callable[[Experience], str]
"""Returns the kind of a step's action. Figures are grouped by kind."""
TOLERANCE = 0.01
"""Largest difference of two rewards or returns that count as equal. A world model may round them."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A real transition and the world model's answer to it."""

    real: Experience
    said: Answer | None
    """None if the answer could not be parsed."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Means over pairs. All means are in [0, 1] except ``reward_error``."""

    steps: int
    """Number of pairs."""
    observation_agreement: float
    """See ``agreement``."""
    observation_exact: float
    """Share of observations predicted exactly, up to white space at the ends."""
    reward_accuracy: float
    """Share of rewards within ``TOLERANCE``."""
    reward_error: float
    """ε_R = E |r̂ - r|, in units of reward. An unreadable answer has the whole range of rewards as its error."""
    transition_error: float
    """ε_P: the mean of 1 - agreement. A pair counts as 1 if the end of the episode or the refusal of the call was
    predicted wrongly. DreamGym's bound is about the consistency of s' with the domain, not about the reconstruction of
    every token."""
    termination_accuracy: float
    unreadable: float
    """Share of answers that could not be parsed."""


@dataclass(frozen=True, slots=True)
class Episode:
    """The returns of a real sequence of actions, and of the same actions imagined from its first state."""

    real_return: float
    imagined_return: float | None
    """None if an answer could not be parsed."""
    same_end: bool
    """Whether both end at the same step and in the same way: terminated or truncated."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The largest loss of return that the model's errors can cause in an update made in imagination.

    DreamGym's theorem 1 bounds the real improvement J(π') - J(π) from below by the imagined improvement, minus these
    two terms, minus a term for the distance of π' from π. Both terms are worst cases and grow with the length of an
    episode.
    """

    reward: float
    """2 ε_R / (1-γ), from wrong rewards."""
    transition: float
    """4 γ R_max ε_P / (1-γ)², from wrong transitions."""


@dataclass(frozen=True, slots=True)
class Fidelity:
    """The results of an audit."""

    overall: Figures
    determined: Figures | None
    """Figures of the actions that are not ``free``: the history determines their answers. None if there are none."""
    openings: Figures | None
    """Figures of the first observations of tasks, judged by consistency; None if none is held out. The figures above
    exclude them, because a search starts from a reset of the environment."""
    by_kind: Mapping[str, Figures]
    """Figures by the kind of the action."""
    compounding: Mapping[int, Figures]
    """Figures of the k-th consecutive imagined step, with k from 1, when the real actions are played."""
    optimism: float
    """Mean of imagined minus real return for the same actions. If it is above 0, the model overestimates."""
    wrong_episodes: float
    """See ``wrong_episodes``."""
    episodes: int
    """Number of whole episodes that were compared."""
    cr: float | None
    """Share of the imagined successes that also succeeded when replayed in the environment (Word2World); None if none
    was replayed."""
    lambda_cap: float
    """See ``lambda_cap``."""
    bound: Bound
    """Worst-case loss of return in an update made in imagination."""

    def to_json(self) -> dict[str, Any]:
        """Return JSON values: the overall figures at the top level, the others as nested tables."""
        record = asdict(self)
        overall: dict[str, Any] = record.pop("overall")
        return overall | record | {"compounding": {str(k): row for k, row in record["compounding"].items()}}


def agreement(real: Experience, predicted: str, *, free: bool = False) -> float:
    """Return how well a predicted observation agrees with the real one, in [0, 1].

    Usually this is F1 over words and numbers, each paired with the first word of its line. If the history does not
    determine the answer (``free``; for example, the results of a query), the prediction is judged by its consistency,
    the mean of three shares. Format: lines with a form that occurs in the real answer. Relevance: of the action's words
    in the real answer, those that the prediction contains, too. History: lines that do not contradict earlier
    observations.
    """
    if predicted.strip() == real.observation.strip():
        return 1.0
    if not free:
        return _f1(Counter(_marked(predicted)), Counter(_marked(real.observation)))
    return (_format(real, predicted) + _relevance(real, predicted) + _history(real, predicted)) / 3


def _marked(text: str) -> list[tuple[str, str]]:
    """Pair each word with the first word of its line, so that the same value under another heading differs."""
    found: list[tuple[str, str]] = []
    for line in text.splitlines():
        spelled = re.findall(r"\w+|[^\w\s]", line.lower())
        found += [(spelled[0], word) for word in spelled]
    return found


def _f1(one: Counter[tuple[str, str]], other: Counter[tuple[str, str]]) -> float:
    """2 |A ∩ B| / (|A| + |B|)."""
    total = one.total() + other.total()
    return 2 * (one & other).total() / total if total else 1.0


def _format(real: Experience, predicted: str) -> float:
    known, lines = set(map(_form, real.observation.splitlines())), predicted.splitlines()
    return sum(_form(line) in known for line in lines) / len(lines) if lines else 0.0


def _form(line: str) -> str:
    """Return a line's form: every number becomes 0, and every sequence of words becomes one word."""
    return re.sub(r"a(?: a)*", "a", re.sub(r"[^\W\d]+", "a", re.sub(r"\d+(?:\.\d+)?", "0", line)))


def _relevance(real: Experience, predicted: str) -> float:
    relevant = set(words(argument(real.action))) & set(words(real.observation))
    return len(relevant & set(words(predicted))) / len(relevant) if relevant else 1.0


def _history(real: Experience, predicted: str) -> float:
    """Return the share of lines without a contradiction. A line contradicts an earlier line with the same words but
    other numbers. A number at the start of a line is ignored."""
    lines_by_form: dict[str, set[str]] = defaultdict(set)
    for message in real.history:
        for line in message.content.splitlines():
            lines_by_form[_form_of_words(line)].add(_unnumbered(line))
    lines = predicted.splitlines()
    good = [not (known := lines_by_form.get(_form_of_words(line))) or _unnumbered(line) in known for line in lines]
    return sum(good) / len(lines) if lines else 0.0


def _unnumbered(line: str) -> str:
    return re.sub(r"^\W*\d+\s+", "", line.strip().lower())


def _form_of_words(line: str) -> str:
    return re.sub(r"\d+(?:\.\d+)?", "0", _unnumbered(line))


def figures(
    pairs: Sequence[Pair], *, free: Collection[str] = (), kind: Kind = lambda one: one.kind, reward_span: float = 1.0
) -> Figures:
    """Compute the means over pairs. At least one pair is required.

    Args:
        free: kinds of actions for which the history does not determine the answer.
        kind: returns the kind of a step's action.
        reward_span: R_max, the reward error of an unreadable answer.
    """
    rows: list[tuple[float, ...]] = []
    for pair in pairs:
        real, answer = pair.real, pair.said
        if answer is None:
            rows.append((0.0, False, False, reward_span, 1.0, False, True))
            continue
        agrees = agreement(real, answer.observation, free=kind(real) in free)
        exact = answer.observation.strip() == real.observation.strip()
        off = abs(answer.reward - real.reward)
        ends = answer.terminated == real.terminated
        right = ends and answer.invalid == real.invalid
        rows.append((agrees, exact, off <= TOLERANCE, off, 1 - agrees if right else 1.0, ends, False))
    return Figures(len(rows), *(sum(column) / len(rows) for column in zip(*rows, strict=True)))


def optimism(episodes: Sequence[Episode]) -> float:
    """Return the mean of imagined minus real return over the episodes with readable answers; 0 if there are none."""
    off = [one.imagined_return - one.real_return for one in episodes if one.imagined_return is not None]
    return sum(off) / len(off) if off else 0.0


def wrong_episodes(episodes: Sequence[Episode]) -> float:
    """Return the share of episodes with a wrong or missing imagined return or with another end; 1 without episodes.
    The end counts, because a search would exploit an imagined episode that continues after the real one is lost."""
    wrong = [
        one.imagined_return is None or abs(one.imagined_return - one.real_return) > TOLERANCE or not one.same_end
        for one in episodes
    ]
    return sum(wrong) / len(wrong) if wrong else 1.0


def lambda_cap(wrong: float, episodes: int, ratio: float | None = None, *, noise: float = 0.05) -> float:
    """Return λ, the largest share of imagined experience to train on: min(1, noise / q), and 0 if q ≥ 1/2.

    If a share λ of the episodes is imagined, and a share q of these is wrong, then a share λ q of all training labels
    is wrong. λ is the largest value that keeps this within ``noise``. From q = 1/2 on, imagined labels mislead at least
    as often as they inform.

    q is the upper end of the 95 % Wilson interval of ``wrong`` over ``episodes``, so few episodes allow little. It
    counts the episodes of a task as independent, so an audit of few tasks allows too much. If imagined plans were
    replayed, q is at least 1 - CR (``ratio``), because search finds the states in which the model errs in the agent's
    favour, and an audit on other trajectories misses these.
    """
    q = max(wilson_interval(wrong * episodes, episodes)[1], 1 - ratio if ratio is not None else 0.0)
    return 0.0 if q >= 0.5 else min(1.0, noise / q)


def wilson_interval(successes: float, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """Return Wilson's score interval of a proportion (Wilson 1927), by default the 95 % interval. It is also valid near
    0 and 1. Without trials it is (0, 1)."""
    if not trials:
        return 0.0, 1.0
    share = successes / trials
    centre = share + z * z / (2 * trials)
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    return max((centre - spread) / scale, 0.0), min((centre + spread) / scale, 1.0)


def error_bound(reward_error: float, transition_error: float, horizon: int, reward_max: float = 1.0) -> Bound:
    """Return the bound for undiscounted episodes of at most ``horizon`` (H) steps. It uses γ = 1 - 1/H, so that
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
    """Compare a world model's predictions with held-out transitions, one by one. Also play every held-out episode in
    the model, where each step starts from the model's own last answer.

    Args:
        model: the world model. All steps are requested at once, so it can answer them as one batch.
        held_out: real transitions and openings that the model was not trained on; at least one transition.
            Compounding errors and returns need whole episodes.
        horizon: most steps of an episode, for the bound.
        free: kinds of actions for which the history does not determine the answer.
        kind: returns the kind of a step's action.
        reward_span: R_max, the range of rewards.
        noise: largest share of wrong training labels, as for ``lambda_cap``.
        cr: share of imagined successes that succeeded in the environment, too; None if none was replayed.
    """
    everything = list(held_out)
    steps, openings = ([one for one in everything if one.opens is opens] for opens in (False, True))

    def judge(pairs: Sequence[Pair]) -> Figures:
        return figures(pairs, free=free, kind=kind, reward_span=reward_span)

    def table(keyed: Iterable[tuple[Any, Pair]]) -> dict[Any, Figures]:
        groups: dict[Any, list[Pair]] = defaultdict(list)
        for name, pair in keyed:
            groups[name].append(pair)
        return {name: judge(group) for name, group in sorted(groups.items())}

    answers = await asyncio.gather(*(model.step(_state(one), _action(one)) for one in steps))
    pairs = [Pair(one, _answer(transition)) for one, transition in zip(steps, answers, strict=True)]
    opening_pairs = await asyncio.gather(*(_open(model, one) for one in openings))
    # A malformed turn is not a step, so the chain after it starts in the middle of an episode and is left out.
    whole_chains = [chain for chain in chains(steps) if not chain[0].depth]
    rollouts = await asyncio.gather(*(_roll(model, chain) for chain in whole_chains))
    episodes = [
        _episode(chain, imagined)
        for chain, imagined in zip(whole_chains, rollouts, strict=True)
        if chain[-1].terminated or chain[-1].truncated
    ]
    overall, wrong = judge(pairs), wrong_episodes(episodes)
    determined = [pair for pair in pairs if kind(pair.real) not in free]
    return Fidelity(
        overall=overall,
        determined=judge(determined) if determined else None,
        openings=figures(opening_pairs, free=("opening",), kind=lambda _: "opening", reward_span=reward_span)
        if opening_pairs
        else None,
        by_kind=table((kind(pair.real), pair) for pair in pairs),
        compounding=table((k, pair) for chain in rollouts for k, pair in enumerate(chain, 1)),
        optimism=optimism(episodes),
        wrong_episodes=wrong,
        episodes=len(episodes),
        cr=cr,
        lambda_cap=lambda_cap(wrong, len(episodes), cr, noise=noise),
        bound=error_bound(overall.reward_error, overall.transition_error, horizon, reward_span),
    )


def chains(experiences: Sequence[Experience]) -> list[list[Experience]]:
    """Return all episodes that the steps form: every path from a step without predecessor to one without successor."""
    following: dict[object, list[Experience]] = defaultdict(list)
    reached = {_state_after(one) for one in experiences}
    for one in experiences:
        following[_before(one)].append(one)
    found: list[list[Experience]] = []
    waiting = [[one] for one in experiences if _before(one) not in reached][::-1]
    while waiting:
        chain = waiting.pop()
        after = following.get(_state_after(chain[-1]), [])
        if after and not chain[-1].terminated:
            waiting += [[*chain, one] for one in reversed(after)]
        else:
            found.append(chain)
    return found


def _before(one: Experience) -> object:
    return one.task_id, one.history


def _state_after(one: Experience) -> object:
    action, observation = Message("assistant", one.action), Message("user", one.observation)
    return one.task_id, (*one.history, action, observation)


def _state(one: Experience) -> State:
    task, opening, *others = one.history
    return State(Task(one.task_id, task.content), (Message("user", f"{task.content}\n{opening.content}"), *others))


def _action(one: Experience) -> Action:
    return Action(one.action, one.action)


def _answer(transition: Transition) -> Answer | None:
    if transition.reward is None:
        return None
    observation = last_answer(transition.state.messages)
    return Answer(observation, transition.reward, transition.terminated, transition.invalid)


async def _open(model: Dynamics, one: Experience) -> Pair:
    task = Task(one.task_id, one.history[0].content)
    try:
        state = await model.reset(task)
    except Unanswered:
        return Pair(one, None)
    return Pair(one, Answer(state.messages[0].content.removeprefix(f"{task.prompt}\n")))


async def _roll(model: Dynamics, episode: Sequence[Experience]) -> list[Pair]:
    """Play an episode's actions from its first state until the model ends it. All later states are imagined."""
    rollout: list[Pair] = []
    state = _state(episode[0])
    for one in episode:
        transition = await model.step(state, _action(one))
        rollout.append(Pair(one, _answer(transition)))
        state = transition.state
        if transition.terminated or transition.truncated:
            break
    return rollout


def _episode(real: Sequence[Experience], imagined: Sequence[Pair]) -> Episode:
    answers = [pair.said for pair in imagined if pair.said is not None]
    readable = len(answers) == len(imagined)
    return Episode(
        sum(one.reward for one in real),
        sum(one.reward for one in answers) if readable else None,
        readable and len(answers) == len(real) and answers[-1].terminated == real[-1].terminated,
    )
