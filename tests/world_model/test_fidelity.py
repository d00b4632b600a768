"""The audit of world models: figures by hand, properties of any audit, and detection of models with known faults."""

import asyncio
import random
from dataclasses import replace

import pytest
from shop_steps import PAGE, RESULTS, experience, shop_steps

from treeagent.types import Action, Message, State, Task, Transition
from treeagent.world_model.fidelity import (
    Episode,
    Fidelity,
    Figures,
    Pair,
    agreement,
    audit,
    chains,
    figures,
    independent_tasks,
    lambda_cap,
    optimism,
    wilson_interval,
    wrong_episodes,
)
from treeagent.world_model.transition import Experience
from treeagent.world_model.wording import answer_of


def said(one: Experience, **other: object) -> Pair:
    return Pair(one, replace(answer_of(one), **other))  # type: ignore[arg-type]


def test_agreement_by_hand() -> None:
    """Lines of four and three words have two words in common: F1 = 2 * 2 / (3 + 4), provided that both begin alike."""
    one = experience("click[1]", answer="lamp red $ 9")
    assert agreement(one, "lamp red $ 9 ") == 1.0
    assert agreement(one, "lamp red 7") == pytest.approx(2 * 2 / (4 + 3))
    assert agreement(one, "red lamp $ 9") == 0.0  # the lines begin differently
    assert agreement(one, "") == 0.0


def test_figures_by_hand() -> None:
    """Four steps: a right one, a wrong reward, a missed end, and an unreadable answer."""
    one = experience("click[1]", answer="a b", reward=0.5)
    end = replace(one, terminated=True)
    pairs = [said(one), said(one, reward=0.75), said(end, terminated=False), Pair(one, None)]
    assert figures(pairs) == Figures(
        steps=4,
        observation_agreement=3 / 4,
        observation_exact=3 / 4,
        reward_accuracy=2 / 4,
        reward_error=(0.25 + 1.0) / 4,
        transition_error=2 / 4,
        termination_accuracy=2 / 4,
        unreadable=1 / 4,
    )
    assert figures([said(one, invalid=True)]).transition_error == 1.0


def test_returns_by_hand() -> None:
    episodes = [Episode(0.0, 1.0, True), Episode(1.0, 1.0, True), Episode(0.5, 0.0, True), Episode(1.0, None, True)]
    assert optimism(episodes) == pytest.approx((1.0 + 0.0 - 0.5) / 3)
    assert wrong_episodes(episodes) == 3 / 4
    assert wrong_episodes([Episode(0.0, 0.0, True), Episode(0.0, 0.0, False)]) == 1 / 2
    assert (optimism([]), wrong_episodes([])) == (0.0, 1.0)


def test_cap_by_hand() -> None:
    """Wilson's upper bound for 0 of 1000 is z² / (n + z²) = 0.00383, and for 10 % of 400 it is 0.1333."""
    assert lambda_cap(0.0, 1000) == 1.0
    assert lambda_cap(0.0, 1000, noise=0.001) == pytest.approx(0.001 * (1000 + 1.959964**2) / 1.959964**2)
    assert lambda_cap(0.1, 400) == pytest.approx(0.05 / 0.1333, rel=1e-3)
    assert lambda_cap(0.1, 400, 0.6) == pytest.approx(0.05 / 0.4)
    assert lambda_cap(0.1, 400, 1.2) == lambda_cap(0.1, 400)
    assert lambda_cap(0.5, 400) == lambda_cap(0.0, 400, 0.5) == lambda_cap(0.0, 0) == 0.0


def test_chains_are_the_ways_from_root_to_leaf() -> None:
    first, other = experience("search[a]"), experience("search[b]", answer="no results")
    then = experience("search[a]", RESULTS, "click[1]", answer=PAGE)
    instead = experience("search[a]", RESULTS, "click[2]", answer="x")
    alone = experience("search[z]", RESULTS, "click[1]", answer=PAGE)
    assert chains([instead, then, alone, first, other]) == [[alone], [first, instead], [first, then], [other]]


class Oracle:
    """Answers from a table of experiences, each altered by ``fault``. Steps outside the table have no answer."""

    def __init__(self, known: list[Experience], **fault: object) -> None:
        self.table = {(one.history[2:], one.action, one.history[0].content): one for one in known}
        self.fault = fault
        self.batches = 0

    async def reset(self, task: Task) -> State:
        return State(task, (Message("user", f"{task.prompt}\nfind it"),))

    async def step(self, state: State, action: Action) -> Transition:
        one = self.table.get((state.messages[1:], str(action.call), state.task.prompt))
        answer = one.observation if one else "nothing"
        heard = (Message("assistant", action.text), Message("user", answer))
        after = State(state.task, (*state.messages, *heard))
        if one is None:
            return Transition(after, origin="imagined")
        told = Transition(after, one.reward, terminated=one.terminated, invalid=one.invalid, origin="imagined")
        return told._replace(**self.fault) if one.terminated else told  # type: ignore[arg-type]


def audited(model: Oracle, held_out: list[Experience], **settings: object) -> Fidelity:
    return asyncio.run(audit(model, held_out, **settings))  # type: ignore[arg-type]


def test_a_true_model_is_trusted() -> None:
    steps = shop_steps(150)
    found = audited(Oracle(steps), steps)
    assert found.overall == Figures(len(steps), 1, 1, 1, 0, 0, 1, 0)
    assert (found.optimism, found.wrong_episodes, found.cr, found.lambda_cap) == (0, 0, None, 1.0)
    assert found.episodes == 150
    assert found.compounding[3].observation_exact == 1.0


def test_an_optimist_is_caught() -> None:
    """The model predicts success for every purchase, so training on it is not allowed."""
    steps = shop_steps(150)
    real = [one.reward for one in steps if one.terminated]
    found = audited(Oracle(steps, reward=1.0), steps)
    assert (found.episodes, len(real)) == (150, 149)  # one episode reached the step limit
    assert found.optimism == pytest.approx(sum(1 - reward for reward in real) / 150)
    assert found.wrong_episodes == pytest.approx(sum(reward < 1 for reward in real) / 150)
    assert found.lambda_cap == lambda_cap(found.wrong_episodes, 150) < 0.3
    assert found.overall.observation_exact == 1.0


def test_a_loss_that_goes_on_in_imagination_counts() -> None:
    """The model misses that a hole ends the episode. The return is right, but the steps that follow do not exist."""
    lost = [one for one in shop_steps(150) if one.terminated]
    steps = [replace(one, reward=0.0) for one in lost]
    found = audited(Oracle(steps, terminated=False), steps)
    assert (found.optimism, found.overall.reward_accuracy) == (0.0, 1.0)
    assert (found.wrong_episodes, found.lambda_cap) == (1.0, 0.0)


def test_errors_compound_over_imagined_steps() -> None:
    """The table lacks the second steps. Steps after them are known one by one, but not in a sequence of predictions."""
    steps = [one for one in shop_steps(80) if one.depth < 3]
    second = {one.digest() for one in steps if one.depth == 1}
    found = audited(Oracle([one for one in steps if one.digest() not in second]), steps)
    assert found.compounding[1].observation_exact == 1.0
    assert found.compounding[2].observation_exact == found.compounding[3].observation_exact == 0.0


def test_what_was_memorised_does_not_raise_the_cap() -> None:
    """The model is right about every page and action that it has learnt, and wrong about the end of any other."""
    steps = shop_steps(150)
    half = steps[: len(steps) // 2]
    known = {(one.seen, one.action) for one in half}
    new = [one for one in steps if (one.seen, one.action) not in known]
    model = Oracle([one if (one.seen, one.action) in known else replace(one, reward=one.reward - 1) for one in steps])
    found = audited(model, steps, learnt=half)
    assert found.unseen is not None and found.unseen.steps == len(new) < len(steps)
    assert found.unseen.reward_accuracy == 0.0 < found.overall.reward_accuracy == 1 - len(new) / len(steps)
    assert found.wrong_unseen == 1.0 > found.wrong_episodes == found.episodes_unseen / found.episodes
    assert found.lambda_cap == 0.0
    whole = audited(model, half, learnt=half)
    assert (whole.unseen, whole.episodes_unseen, whole.lambda_cap) == (None, 0, audited(model, half).lambda_cap)


def test_the_interval_of_errors_covers_the_truth_where_the_episodes_of_a_task_go_wrong_together() -> None:
    """About 500 episodes of 59 tasks. A task's rate of wrong episodes is from Beta(0.4, 1.6), on average 0.2."""
    shuffler, covered, covered_by_episodes, draws = random.Random(0), 0, 0, 1000
    for _ in range(draws):
        tasks = [task for task in range(59) for _ in range(1 + shuffler.randrange(16))]
        rates = [shuffler.betavariate(0.4, 1.6) for _ in range(59)]
        wrong = sum(shuffler.random() < rates[task] for task in tasks) / len(tasks)
        count = independent_tasks(map(str, tasks))
        covered += wilson_interval(wrong * count, count)[1] >= 0.2
        covered_by_episodes += wilson_interval(wrong * len(tasks), len(tasks))[1] >= 0.2
    assert covered >= 0.97 * draws and covered_by_episodes < 0.95 * draws
