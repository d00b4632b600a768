"""The audit of world models: figures by hand, properties of any audit, and detection of models with known faults."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shop_steps import PAGE, RESULTS, experience, shop_steps, shop_trees

from treeagent.types import Action, Message, State, Task, Transition, Unanswered
from treeagent.views.transitions import transitions
from treeagent.world_model.experience import ExperienceModel
from treeagent.world_model.fidelity import (
    Episode,
    Fidelity,
    Figures,
    Pair,
    agreement,
    audit,
    chains,
    error_bound,
    figures,
    lambda_cap,
    optimism,
    wrong_episodes,
)
from treeagent.world_model.transition import Experience
from treeagent.world_model.wording import Wording, answer_of


def said(one: Experience, **other: object) -> Pair:
    return Pair(one, replace(answer_of(one), **other))  # type: ignore[arg-type]


def test_agreement_by_hand() -> None:
    """Lines of four and three words have two words in common: F1 = 2 * 2 / (3 + 4), provided that both begin alike."""
    one = experience("click[1]", answer="lamp red $ 9")
    assert agreement(one, "lamp red $ 9 ") == 1.0
    assert agreement(one, "lamp red 7") == pytest.approx(2 * 2 / (4 + 3))
    assert agreement(one, "red lamp $ 9") == 0.0  # the lines begin differently
    assert agreement(one, "") == 0.0
    two = experience("click[1]", answer="a b\nc d")
    assert agreement(two, "c d\na b") == 1.0
    assert agreement(two, "a d\nc b") == pytest.approx(2 * 2 / (4 + 4))


def test_consistency_by_hand() -> None:
    """Format 2/3 (order placed is not a result), relevance 1/2 (lamp, but not red), history 2/3 (the price changed)."""
    one = experience("search[x]", "1 red lamp $9", "search[red lamp]", answer="1 red lamp $9\n2 old lamp $3")
    assert agreement(one, "1 blue lamp $4\n2 white lamp $5", free=True) == pytest.approx((1 + 1 / 2 + 1) / 3)
    assert agreement(one, "2 red lamp $8\n1 tall lamp $4\norder placed", free=True) == pytest.approx(
        (2 / 3 + 1 + 2 / 3) / 3
    )
    assert agreement(one, "", free=True) == pytest.approx(0.0)
    assert agreement(one, one.observation, free=True) == 1.0


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


shares = st.floats(0, 1)


@given(shares, shares, st.integers(1, 10_000))
def test_the_cap_falls_with_the_wrong_share_and_rises_with_the_size_of_the_audit(
    one: float, other: float, episodes: int
) -> None:
    low, high = sorted((one, other))
    assert 0.0 <= lambda_cap(high, episodes) <= lambda_cap(low, episodes) <= 1.0
    assert lambda_cap(low, episodes) <= lambda_cap(low, 2 * episodes) + 1e-9
    assert lambda_cap(low, episodes, high) <= lambda_cap(low, episodes)


def test_bound_by_hand() -> None:
    """H = 4, so γ = 3/4: 2 * 0.02 * 4 and 4 * 3/4 * 0.005 * 16; the latter doubles with R_max."""
    bound = error_bound(0.02, 0.005, horizon=4)
    assert (bound.reward, bound.transition) == pytest.approx((0.16, 0.24))
    doubled = error_bound(0.02, 0.005, horizon=4, reward_max=2.0)
    assert (doubled.reward, doubled.transition) == pytest.approx((0.16, 0.48))


def test_chains_are_the_ways_from_root_to_leaf() -> None:
    first, other = experience("search[a]"), experience("search[b]", answer="no results")
    then = experience("search[a]", RESULTS, "click[1]", answer=PAGE)
    instead = experience("search[a]", RESULTS, "click[2]", answer="x")
    alone = experience("search[z]", RESULTS, "click[1]", answer=PAGE)
    assert chains([instead, then, alone, first, other]) == [[alone], [first, instead], [first, then], [other]]


def test_chains_of_demonstrations_are_the_demonstrations() -> None:
    steps = [list(transitions(tree)) for tree in shop_trees(30)]
    assert chains([one for chain in steps for one in chain]) == steps


class Oracle:
    """Answers from a table of experiences, each altered by ``fault``. Steps outside the table have no answer."""

    def __init__(self, known: list[Experience], **fault: object) -> None:
        self.table = {(one.history[2:], one.action, one.history[0].content): one for one in known}
        self.fault = fault
        self.batches = 0

    async def reset(self, task: Task) -> State:
        if task.id == "silent":
            raise Unanswered("no word")
        return State(task, (Message("user", f"{task.prompt}\nfind it"),))

    async def step(self, state: State, action: Action) -> Transition:
        one = self.table.get((state.messages[1:], str(action.call), state.task.prompt))
        answer = one.observation if one else "nothing"
        heard = (Message("assistant", action.text), Message("user", answer))
        after = State(state.task, (*state.messages, *heard))
        if one is None:
            return Transition(after, origin="imagined")
        told = Transition(after, one.reward, terminated=one.terminated, invalid=one.invalid, origin="imagined")
        return replace(told, **self.fault) if one.terminated else told  # type: ignore[arg-type]


def audited(model: Oracle, held_out: list[Experience], **settings: object) -> Fidelity:
    return asyncio.run(audit(model, held_out, **{"horizon": 4, **settings}))  # type: ignore[arg-type]


def test_a_true_model_is_trusted() -> None:
    steps = shop_steps(150)
    found = audited(Oracle(steps), steps)
    assert found.overall == Figures(len(steps), 1, 1, 1, 0, 0, 1, 0)
    assert (found.optimism, found.wrong_episodes, found.cr, found.lambda_cap) == (0, 0, None, 1.0)
    assert found.episodes == 150
    assert set(found.by_kind) == {"search", "click"}
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


def test_a_model_that_cannot_be_read_is_not_trusted() -> None:
    steps = shop_steps(50)
    found = audited(Oracle(steps, reward=None), steps)
    ends = sum(one.terminated for one in steps)
    assert found.overall.unreadable == ends / len(steps)
    assert found.overall.reward_error == ends / len(steps)
    assert (found.wrong_episodes, found.lambda_cap) == (1.0, 0.0)


def test_errors_compound_over_imagined_steps() -> None:
    """The table lacks the second steps. Steps after them are known one by one, but not in a sequence of predictions."""
    steps = [one for one in shop_steps(80) if one.depth < 3]
    second = {one.digest() for one in steps if one.depth == 1}
    found = audited(Oracle([one for one in steps if one.digest() not in second]), steps)
    assert found.compounding[1].observation_exact == 1.0
    assert found.compounding[2].observation_exact == found.compounding[3].observation_exact == 0.0


def test_what_begins_in_the_midst_of_an_episode_is_none() -> None:
    """In half of the episodes a malformed turn, which is not a step, took the place of the first step."""
    steps = shop_steps(80)
    cut = {one.task_id for one in steps[: len(steps) // 2]}
    left = [one for one in steps if one.depth or one.task_id not in cut]
    found = audited(Oracle(steps), left)
    assert found.episodes == found.compounding[1].steps == 80 - len(cut)
    assert found.overall.steps == len(left)


def test_plans_that_fail_for_real_lower_the_cap() -> None:
    steps = shop_steps(150)
    found = audited(Oracle(steps), steps, cr=0.75)
    assert found.cr == 0.75
    assert found.lambda_cap == pytest.approx(0.05 / 0.25)


def test_kinds_are_told_apart_as_asked() -> None:
    steps = shop_steps(30)
    found = audited(Oracle(steps), steps, kind=lambda one: "end" if one.terminated else "other")
    assert {name: row.steps for name, row in found.by_kind.items()} == {"end": 30, "other": len(steps) - 30}


def test_what_can_be_told_has_figures_of_its_own() -> None:
    """The table has no searches. All other steps are as exact as before."""
    steps = shop_steps(30)
    known = [one for one in steps if one.kind != "search"]
    found = audited(Oracle(known), steps, free=("search",))
    assert found.determined == Figures(len(known), 1, 1, 1, 0, 0, 1, 0)
    assert found.overall.observation_exact == pytest.approx(len(known) / len(steps))
    assert found.to_json()["determined"]["observation_exact"] == 1.0
    assert audited(Oracle(steps), steps, free=("search", "click")).determined is None


def test_openings_have_figures_of_their_own() -> None:
    steps = shop_steps(20)
    alone = audited(Oracle(steps), steps)
    opened = [Experience(name, (Message("user", "a lamp"),), "reset", "find it") for name in ("one", "silent")]
    found = audited(Oracle(steps), [*opened, *steps])
    assert alone.openings is None
    assert found.openings is not None
    assert (found.openings.steps, found.openings.observation_exact, found.openings.unreadable) == (2, 0.5, 0.5)
    assert replace(found, openings=None) == alone
    assert found.to_json()["openings"]["observation_exact"] == 0.5


def test_the_report_is_plain() -> None:
    steps = shop_steps(20)
    report = audited(Oracle(steps), steps).to_json()
    keys = (
        "observation_agreement observation_exact reward_accuracy reward_error transition_error termination_accuracy "
        "optimism cr lambda_cap"
    )
    assert set(keys.split()) < set(report)
    assert report["by_kind"]["search"]["observation_exact"] == report["compounding"]["1"]["reward_accuracy"] == 1.0


def test_the_bound_is_told() -> None:
    steps = shop_steps(50)
    found = audited(Oracle(steps, reward=1.0), steps, horizon=4)
    assert found.bound.transition == 0
    assert found.bound.reward == pytest.approx(2 * found.overall.reward_error * 4)
    assert found.to_json()["bound"]["reward"] == found.bound.reward


@given(st.lists(st.tuples(st.text("ab \n", max_size=6), st.text("ab \n", max_size=6), st.booleans()), min_size=1))
def test_figures_are_shares_and_exactness_implies_agreement(texts: list[tuple[str, str, bool]]) -> None:
    pairs = [
        said(experience("search[a]", answer=real), observation=heard, terminated=end) for real, heard, end in texts
    ]
    for free in ((), ("search",)):
        found = figures(pairs, free=free)
        assert 0 <= found.observation_exact <= found.observation_agreement + 1e-9 <= 1 + 2e-9
        assert found.transition_error >= 1 - found.termination_accuracy - 1e-9
        assert found.transition_error >= 1 - found.observation_agreement - 1e-9


def test_rule_written_answers_pass_the_audit_of_an_experience_model() -> None:
    """The whole path: experiences to answers, answers to transitions, transitions to figures."""
    from test_experience import Script

    steps = [one for one in shop_steps(40) if one.depth == 0]
    actions = {one.action: one for one in steps}  # the results of a search do not depend on the task
    model = ExperienceModel(
        Script({action: Wording().target(one) for action, one in actions.items()}), Wording(), max_steps=9
    )
    found = asyncio.run(audit(model, list(actions.values()), horizon=4))
    assert found.overall.observation_exact == found.overall.reward_accuracy == 1.0
    assert found.overall.unreadable == 0
