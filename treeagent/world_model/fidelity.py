"""Measure a world model's errors on held-out real transitions, and derive the share of imagined experience that these
errors allow."""

import asyncio
import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from treeagent.types import Action, Dynamics, Message, State, Task, Transition
from treeagent.world_model.transition import Experience, last_answer
from treeagent.world_model.wording import Answer

TOLERANCE = 0.01
"""Largest difference of two rewards or returns that count as equal. A world model may round them."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A real transition and the world model's answer to it, which is None if it could not be parsed."""

    real: Experience
    said: Answer | None


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
    """ε_R = E |r̂ - r|, in units of reward; an unreadable answer has the whole range of rewards as its error."""
    transition_error: float
    """ε_P: the mean of 1 - agreement; a pair with a wrong end or refusal counts as 1 (DreamGym)."""
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
class Fidelity:
    """The results of an audit. Figures are None where there are no such steps."""

    overall: Figures
    unseen: Figures | None
    """Of the steps whose page and action the model has not learnt together; the others may be memory."""
    determined: Figures | None
    """Of the actions that are not ``free``, whose answers the history determines."""
    compounding: Mapping[int, Figures]
    """Figures of the k-th consecutive imagined step, with k from 1, when the real actions are played."""
    optimism: float
    """Mean of imagined minus real return for the same actions."""
    wrong_episodes: float
    episodes: int
    """Number of whole episodes that were compared."""
    wrong_unseen: float
    """``wrong_episodes`` of the episodes with an unseen step; 1 without any."""
    episodes_unseen: int
    cr: float | None
    """Share of the imagined successes that also succeeded when replayed in the environment (Word2World), if any was."""
    lambda_cap: float
    """See ``lambda_cap``; of the episodes with something unseen, if there are any."""

    def to_json(self) -> dict[str, Any]:
        """The overall figures at the top level, the others as nested tables."""
        record = asdict(self)
        overall: dict[str, Any] = record.pop("overall")
        return overall | record | {"compounding": {str(k): row for k, row in record["compounding"].items()}}


def agreement(real: Experience, predicted: str) -> float:
    """How well a predicted observation agrees with the real one, in [0, 1]: F1 = 2 |A ∩ B| / (|A| + |B|) over words and
    numbers, each paired with the first word of its line."""
    if predicted.strip() == real.observation.strip():
        return 1.0
    said, true = _marked(predicted), _marked(real.observation)
    return 2 * (said & true).total() / (said.total() + true.total())


def _marked(text: str) -> Counter[tuple[str, str]]:
    """Pair each word with the first word of its line, so that the same value under another heading differs."""
    found = Counter[tuple[str, str]]()
    for line in text.splitlines():
        spelled = re.findall(r"\w+|[^\w\s]", line.lower())
        found.update((spelled[0], word) for word in spelled)
    return found


def is_free(one: Experience, free: Collection[str]) -> bool:
    """Whether the first word of a step's action, or the whole action, is in ``free``."""
    return one.kind in free or one.action in free


def figures(pairs: Sequence[Pair], *, reward_span: float = 1.0) -> Figures:
    """The means over pairs, at least one. ``reward_span`` (R_max) is the reward error of an unreadable answer."""
    rows: list[tuple[float, ...]] = []
    for pair in pairs:
        real, answer = pair.real, pair.said
        if answer is None:
            rows.append((0.0, False, False, reward_span, 1.0, False, True))
            continue
        agrees = agreement(real, answer.observation)
        exact = answer.observation.strip() == real.observation.strip()
        off = abs(answer.reward - real.reward)
        ends = answer.terminated == real.terminated
        right = ends and answer.invalid == real.invalid
        rows.append((agrees, exact, off <= TOLERANCE, off, 1 - agrees if right else 1.0, ends, False))
    return Figures(len(rows), *(sum(column) / len(rows) for column in zip(*rows, strict=True)))


def optimism(episodes: Sequence[Episode]) -> float:
    """The mean of imagined minus real return over the episodes with readable answers; 0 if there are none."""
    off = [one.imagined_return - one.real_return for one in episodes if one.imagined_return is not None]
    return sum(off) / len(off) if off else 0.0


def wrong_episodes(episodes: Sequence[Episode]) -> float:
    """The share of episodes with a wrong or missing imagined return or with another end; 1 without episodes."""
    wrong = [
        one.imagined_return is None or abs(one.imagined_return - one.real_return) > TOLERANCE or not one.same_end
        for one in episodes
    ]
    return sum(wrong) / len(wrong) if wrong else 1.0


def independent_tasks(task_ids: Iterable[str]) -> float:
    """The number of tasks that count as independent among their episodes, (Σ m)² / Σ m² for m episodes of a task (Kish
    1965): a model that errs in one episode of a task tends to err in the others, too."""
    sizes = Counter(task_ids).values()
    return sum(sizes) ** 2 / sum(size * size for size in sizes) if sizes else 0.0


def lambda_cap(wrong: float, tasks: float, ratio: float | None = None, *, noise: float = 0.05) -> float:
    """λ, the largest share of imagined experience to train on: min(1, noise / q), and 0 if q ≥ 1/2. If a share λ of
    the episodes is imagined, of which a share q is wrong, then a share λ q of all training labels is wrong.

    q is the upper end of the 95 % Wilson interval of ``wrong`` over ``tasks`` (``independent_tasks``), and at least
    1 - CR (``ratio``) if imagined plans were replayed: search finds the states in which the model errs for the agent.
    """
    q = max(wilson_interval(wrong * tasks, tasks)[1], 1 - ratio if ratio is not None else 0.0)
    return 0.0 if q >= 0.5 else min(1.0, noise / q)


def wilson_interval(successes: float, trials: float, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's score interval of a proportion (Wilson 1927), by default the 95 % interval; (0, 1) without trials."""
    if not trials:
        return 0.0, 1.0
    share = successes / trials
    centre = share + z * z / (2 * trials)
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    return max((centre - spread) / scale, 0.0), min((centre + spread) / scale, 1.0)


async def audit(
    model: Dynamics,
    held_out: Iterable[Experience],
    *,
    learnt: Iterable[Experience] = (),
    free: Collection[str] = (),
    reward_span: float = 1.0,
    noise: float = 0.05,
    cr: float | None = None,
) -> Fidelity:
    """Compare a world model's predictions with held-out transitions, one by one and as whole imagined episodes.

    Args:
        held_out: real transitions of other tasks than those of the steps that the model ``learnt``; at least one.
        free: actions, or their first words, for which the history does not determine the answer (``determined``).
        reward_span: R_max, the range of rewards.
        noise: largest share of wrong training labels, as for ``lambda_cap``.
        cr: share of imagined successes that succeeded in the environment, too; None if none was replayed.
    """
    steps, known = list(held_out), {(one.seen, one.action) for one in learnt}

    def unseen(one: Experience) -> bool:
        return (one.seen, one.action) not in known

    def judge(pairs: Sequence[Pair]) -> Figures | None:
        return figures(pairs, reward_span=reward_span) if pairs else None

    answers = await asyncio.gather(*(model.step(_state(one), Action(one.action, one.action)) for one in steps))
    pairs = [Pair(one, _answer(transition)) for one, transition in zip(steps, answers, strict=True)]
    # A malformed turn is not a step, so the chain after it starts in the middle of an episode and is left out.
    whole = [chain for chain in chains(steps) if not chain[0].depth]
    rollouts = await asyncio.gather(*(_roll(model, chain) for chain in whole))
    ended = [each for each in zip(whole, rollouts, strict=True) if each[0][-1].terminated or each[0][-1].truncated]
    new = [each for each in ended if any(map(unseen, each[0]))]
    episodes, unseen_episodes = ([_episode(*each) for each in found] for found in (ended, new))
    tasks = independent_tasks(chain[0].task_id for chain, _ in new or ended)
    compounding: dict[int, list[Pair]] = defaultdict(list)
    for depth, pair in (each for rollout in rollouts for each in enumerate(rollout, start=1)):
        compounding[depth].append(pair)
    return Fidelity(
        overall=figures(pairs, reward_span=reward_span),
        unseen=judge([pair for pair in pairs if unseen(pair.real)]),
        determined=judge([pair for pair in pairs if not is_free(pair.real, free)]),
        compounding={k: figures(found, reward_span=reward_span) for k, found in sorted(compounding.items())},
        optimism=optimism(episodes),
        wrong_episodes=wrong_episodes(episodes),
        episodes=len(episodes),
        wrong_unseen=wrong_episodes(unseen_episodes),
        episodes_unseen=len(new),
        cr=cr,
        lambda_cap=lambda_cap(wrong_episodes(unseen_episodes or episodes), tasks, cr, noise=noise),
    )


def chains(experiences: Sequence[Experience]) -> list[list[Experience]]:
    """All episodes that the steps form: every path from a step without predecessor to one without successor."""

    def after_it(one: Experience) -> object:
        return one.task_id, (*one.history, Message("assistant", one.action), Message("user", one.observation))

    following: dict[object, list[Experience]] = defaultdict(list)
    reached = set(map(after_it, experiences))
    for one in experiences:
        following[one.task_id, one.history].append(one)
    found: list[list[Experience]] = []
    waiting = [[one] for one in experiences if (one.task_id, one.history) not in reached][::-1]
    while waiting:
        chain = waiting.pop()
        after = following.get(after_it(chain[-1]), [])
        if after and not chain[-1].terminated:
            waiting += [[*chain, one] for one in reversed(after)]
        else:
            found.append(chain)
    return found


def _state(one: Experience) -> State:
    task, opening, *others = one.history
    return State(Task(one.task_id, task.content), (Message("user", f"{task.content}\n{opening.content}"), *others))


def _answer(transition: Transition) -> Answer | None:
    if transition.reward is None:
        return None
    observation = last_answer(transition.state.messages)
    return Answer(observation, transition.reward, transition.terminated, transition.invalid)


async def _roll(model: Dynamics, episode: Sequence[Experience]) -> list[Pair]:
    """Play an episode's actions from its first state until the model ends it."""
    rollout: list[Pair] = []
    state = _state(episode[0])
    for one in episode:
        transition = await model.step(state, Action(one.action, one.action))
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
