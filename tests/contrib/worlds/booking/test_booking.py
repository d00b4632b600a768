"""The booking site: rules, verdicts, renderings, tasks, bad input."""

import hashlib
import json
import random
from dataclasses import replace

import pytest

from treeagent.agent.checkpoint import load_checkpoint
from treeagent.cli.options import find_checkpoint
from treeagent.contrib.worlds.booking import BookingEnv, BookingOptions
from treeagent.contrib.worlds.booking.goals import FAMILIES, Goal, tables
from treeagent.contrib.worlds.booking.site import Action, Rules, Session, is_over, start, step, view
from treeagent.contrib.worlds.booking.town import Ledger, draw_town
from treeagent.envs import make_env
from treeagent.envs.check import check_env
from treeagent.types import SPLITS, Task

SIX = len(FAMILIES)


def played(env: BookingEnv, task: Task, noise: float = 0.0, seed: int = 0) -> list[str]:
    """The demonstrator's calls from the start to the end."""
    env.reset(options={"task": task})
    player, rng, calls = env.demonstrator(noise), random.Random(seed), list[str]()
    while env.verdict() is None:
        calls.append(player.act(rng)[1])
        assert not env.step(calls[-1])[4]
    return calls


@pytest.mark.parametrize("view_", ["text", "tools"])
@pytest.mark.parametrize("size", [3, 8, 18])
def test_the_demonstrator_solves_every_family(view_: str, size: int) -> None:
    env = make_env("booking", {"size": size, "view": view_, "popups": True, "wordings": 3, "fields": size > 3})
    assert isinstance(env, BookingEnv)
    for task in env.tasks("train", 4 * SIX):
        calls = played(env, task)
        assert env.verify() == 1.0
        if task.data["family"] in ("exact", "flexible", "constrained", "change"):
            assert size + 3 <= len(calls) <= size + 9


def test_one_wrong_answer_fails_and_the_last_page_does_not_tell() -> None:
    env = BookingEnv()
    ends = set[str]()
    for task in env.tasks("train", 2 * SIX):
        calls = played(env, task)
        if task.data["family"] == "impossible":
            continue
        env.reset(options={"task": task})
        for call in calls[:-2]:
            env.step(call)
        wrong = next(each for each in env.legal_actions() if each != calls[-2])
        env.step(wrong)
        end, reward, terminated, _, _ = env.step(calls[-1])
        assert (reward, terminated, env.verify()) == (0.0, True, 0.0)
        env.reset(options={"task": task})
        ends |= {end, [env.step(call)[0] for call in calls][-1]}
    assert len(ends) == 1


def test_a_possible_task_is_not_solved_by_giving_up_nor_an_impossible_one_by_a_booking() -> None:
    env = BookingEnv(BookingOptions(families=("exact", "impossible")))
    possible, impossible = env.tasks("validation", 2)
    env.reset(options={"task": possible})
    env.step("click[1]")
    env.step("click[1]")
    env.step(f"click[{len(env.legal_actions())}]")
    assert env.verdict() == 0.0
    env.reset(options={"task": impossible})
    env.step("click[1]")
    env.step("click[1]")
    while env.verdict() is None:
        env.step("click[1]")
    assert env.verdict() == 0.0


def test_a_field_takes_its_texts_whatever_their_capitals_and_nothing_else() -> None:
    env = BookingEnv(BookingOptions(size=8, fields=True))
    assert env.reset(seed=0)[0] == "cuisine\n1 select Thai Greek Indian French\n2 my bookings"
    for call in ("click[1]", "type[1, thai]", "select[2, Thai]", "select[1, fusion]", "click[3]"):
        assert env.step(call)[4] and env.visit.session.page == "home"
    assert not env.step('select {"option": "gREEK", "element": 1}')[4] and env.visit.session.cuisine == "greek"


def test_a_preferred_seating_counts_only_where_it_is_possible() -> None:
    town = draw_town(0, 3, 1, 12)
    place = next(iter(town.places.values()))
    day, times = place.times[0]
    wish = Goal(0, "flexible", place=place.name, day=day, seating=place.seatings[0], prefers=True)
    assert {each[-1] for each in tables(wish, town)} == {place.seatings[0]}
    missing = next(each for each in ("terrace", "bar", "window", "booth") if each not in place.seatings)
    assert {each[-1] for each in tables(replace(wish, seating=missing), town)} == set(place.seatings)
    assert not tables(replace(wish, seating=missing, prefers=False), town)
    assert {each[2] for each in tables(replace(wish, earliest=times[1]), town)} == {times[1]}


def test_a_form_is_final_unless_holds_are_left_and_a_hold_expires() -> None:
    town, rules = draw_town(1, 5, 1, 12), Rules(holds=2, hold_steps=1)
    ledger: Ledger = town.booked
    session = start(rules)

    def click(tool: str, number: int = 0) -> None:
        nonlocal ledger, session
        actions = [each.action for each in view(town, rules, ledger, session).elements if each.action.tool == tool]
        ledger, session = step(town, rules, ledger, session, actions[number])

    def hold() -> None:
        for tool in ("search", "open", "book", "answer", "answer", "answer"):
            click(tool)

    hold()
    assert len(ledger) == len(town.booked) + 1 and ledger[-1].kind == "held"
    click("start_over")
    assert ledger == town.booked and session.page == "home"
    hold()
    assert "start_over" not in {each.action.tool for each in view(town, rules, ledger, session).elements}
    click("answer")
    click("answer")
    assert ledger == town.booked and session.said == "your table was given away"
    click("search")
    click("open")
    assert {each.action.tool for each in view(town, rules, ledger, session).elements} == {"back", "none_fits"}
    with pytest.raises(ValueError, match="no book on this page"):
        step(town, rules, ledger, session, Action("book"))


def test_many_users_lose_no_booking_and_never_share_a_table() -> None:
    town, rules = draw_town(2, 5, 1, 8), Rules(holds=3, hold_steps=20)
    for seed in range(3):
        rng, ledger = random.Random(seed), town.booked
        sessions = {f"guest{number}": start(rules, f"guest{number}") for number in range(50)}
        sent = {each.number: each for each in ledger}
        while running := [name for name, each in sessions.items() if not is_over(each) and each.clock < 60]:
            name = rng.choice(running)
            actions = [each.action for each in view(town, rules, ledger, sessions[name]).elements]
            ledger, sessions[name] = step(town, rules, ledger, sessions[name], rng.choice(actions))
            live = [each.table() for each in ledger if each.kind != "cancelled"]
            assert len(set(live)) == len(live)
            found = {each.number: each for each in ledger if each.kind != "held"}
            assert all(found[number].owner == each.owner for number, each in sent.items())
            sent = found


def test_text_and_tools_lead_to_the_same_states() -> None:
    options = BookingOptions(size=6, popups=True, slow=0.3, holds=2)
    text, tools = BookingEnv(options), BookingEnv(replace(options, view="tools"))
    for seed, task in enumerate(text.tasks("test", 5 * SIX)):
        rng = random.Random(seed)
        text.reset(options={"task": task})
        shown = tools.reset(options={"task": task})[0]
        while text.verdict() is None:
            elements = text.page().elements
            assert [each["value"] for each in json.loads(shown)["calls"]] == [each.action.value for each in elements]
            number = rng.randrange(len(elements))
            text.step(f"click[{number + 1}]")
            shown = tools.step(tools.legal_actions()[number])[0]
            assert text.visit == tools.visit and text.verify() == tools.verify()


def test_the_contract_holds_and_splits_differ() -> None:
    env, other = BookingEnv(BookingOptions(size=5)), BookingEnv(BookingOptions(size=5))
    for task in env.tasks("train", SIX):
        report = check_env(env, task, other=other)
        assert report.passed, report.violations
    towns = [task.data["town"] for split in SPLITS for task in env.tasks(split, 40)]
    assert len(set(towns)) == len(towns)


def test_a_change_and_a_cancellation_touch_one_booking() -> None:
    env = BookingEnv(BookingOptions(families=("change", "cancel")))
    for task in env.tasks("train", 6):
        played(env, task)
        goal, (ledger, session) = env.key, env.visit
        kept = [each for each in env.town(goal.town).booked if each.number != goal.booking]
        assert [each for each in ledger if each.number != goal.booking] == kept
        assert isinstance(session, Session) and env.verify() == 1.0


def test_the_policy_that_comes_with_the_package_is_the_one_that_was_measured() -> None:
    """``treeagent quickstart --config booking threads=1`` makes it anew (seed 0)."""
    folder = find_checkpoint("booking_base")
    weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert weights == "1817d7cdb5b1c914e2413b593b59041bb398db6b1628626036dfd470467115e5"
    checkpoint = load_checkpoint(folder)
    assert checkpoint.head is not None and checkpoint.model.num_parameters() < 1_000_000
