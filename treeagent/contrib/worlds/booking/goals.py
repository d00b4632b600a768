"""What a user wants: drawn goals, the instructions that state them, and the verdict on a ledger."""

import random
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from treeagent.contrib.worlds.booking.town import (
    CANCELLING,
    DAYS,
    GUESTS,
    QUESTIONS,
    TIMES,
    Ledger,
    Place,
    Town,
    spoken,
)

Family = Literal["exact", "flexible", "constrained", "impossible", "change", "cancel"]
FAMILIES: tuple[Family, ...] = get_args(Family)


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Goal:
    """The answer key of a task. What is empty may be anything."""

    town: int
    """Seed of the town."""
    family: Family
    cuisine: str = ""
    place: str = ""
    most_price: int = 0
    """Dollars a head."""
    most_walk: int = 0
    """Minutes."""
    allergy: str = ""
    guests: str = GUESTS[0]
    day: str = ""
    earliest: str = TIMES[0]
    latest: str = TIMES[-1]
    seating: str = ""
    prefers: bool = False
    """The seating is wanted only where it is possible."""
    booking: int = -1
    """Number of the booking to change or cancel."""
    answers: dict[str, str] = Field(default_factory=dict)
    """Answers to the other questions."""


Table = tuple[str, str, str, str]
"""Place, day, time, seating."""


def suits(goal: Goal, place: Place) -> bool:
    """Whether a place meets what is asked of it, tables aside."""
    return (
        goal.place in ("", place.name)
        and goal.cuisine in ("", place.cuisine)
        and (not goal.most_price or place.price <= goal.most_price)
        and (not goal.most_walk or place.walk <= goal.most_walk)
        and (not goal.allergy or goal.allergy in place.safe)
        and goal.guests in place.guests()
    )


def tables(goal: Goal, town: Town) -> list[Table]:
    """The tables that the user is content with, if nobody else has them; none for an impossible goal."""
    taken = {each.table() for each in town.booked if each.kind != "cancelled" and each.number != goal.booking}
    found = [
        (place.name, day, time, seating)
        for place in town.places.values()
        if suits(goal, place)
        for day, times in place.times
        if goal.day in ("", day)
        for time in times
        if goal.earliest <= time <= goal.latest
        for seating in place.seatings
        if (place.name, day, time, seating) not in taken
    ]
    wanted = [each for each in found if goal.seating in ("", each[-1])]
    return wanted or (found if goal.prefers else [])


def verdict(goal: Goal, town: Town, ledger: Ledger, page: str) -> float:
    """1 if the user's bookings at the end are the wanted ones and all others are as before, else 0."""
    before = {each.number: each for each in town.booked}
    mine = {each.number: each for each in ledger if each.owner == "user"}
    changed = [each for number, each in mine.items() if before.get(number) != each]
    wanted = tables(goal, town)
    if goal.family != "cancel" and not wanted:
        return float(page == "none" and not changed)
    if page != "sent" or len(changed) != 1:
        return 0.0
    (record,) = changed
    if goal.family == "cancel":
        is_it = record.kind == "cancelled" and record.number == goal.booking
        return float(is_it and dict(record.cancelling) == goal.answers)
    if record.kind != "booked" or (record.number == goal.booking) != (goal.family == "change"):
        return 0.0
    given = dict(record.answers)
    same = given.get("guests") == goal.guests and all(given.get(key) == each for key, each in goal.answers.items())
    return float(same and record.table() in wanted)


def draw_goal(town: Town, family: Family, rng: random.Random) -> Goal:
    """Draw a goal of a family in a town."""
    if family == "cancel":
        booking = rng.choice(town.booked)
        answers = {each: rng.choice(CANCELLING[each])[0] for each in town.cancelling}
        return Goal(town.seed, family, place=booking.place, booking=booking.number, answers=answers)
    answers = {each: rng.choice(QUESTIONS[each])[0] for each in town.questions}
    while True:
        goal = Goal(town.seed, family, answers=answers, **_wishes(town, family, rng))
        if bool(tables(goal, town)) == (family != "impossible"):
            return goal


def _wishes(town: Town, family: Family, rng: random.Random) -> dict[str, Any]:
    """Draw what is asked of place and table, around a table of the town unless it is to be impossible."""
    booking = rng.choice(town.booked)
    place = town.places[booking.place] if family == "change" else rng.choice(list(town.places.values()))
    day, times = rng.choice(place.times)
    time, seating = rng.choice(times), rng.choice(place.seatings)
    guests = rng.choice(place.guests())
    wishes: dict[str, Any] = {"guests": guests, "day": day, "earliest": time, "latest": time, "seating": seating}
    match family:
        case "exact":
            return wishes | {"place": place.name, "cuisine": place.cuisine}
        case "change":
            return wishes | {"place": place.name, "booking": booking.number}
        case "flexible":
            index = TIMES.index(time)
            first = rng.choice([each for each in (index - 1, index) if 0 <= each < len(TIMES) - 1])
            window = {"earliest": TIMES[first], "latest": TIMES[first + 1], "prefers": True}
            any_seating = rng.choice([each[0] for each in QUESTIONS["seating"]])
            wishes |= window | {"seating": rng.choice((seating, any_seating))}
            return wishes | {"place": place.name, "cuisine": place.cuisine}
        case "constrained":
            limit = {"most_price": place.price // 10 * 10 + 10, "most_walk": place.walk // 5 * 5 + 5}
            wishes |= limit | {"cuisine": place.cuisine, "allergy": rng.choice(place.safe)}
            return wishes | {"earliest": TIMES[0], "latest": TIMES[-1]}
    name, wanted = rng.choice(
        (("day", DAYS), ("guests", GUESTS), ("seating", [each[0] for each in QUESTIONS["seating"]]))
    )
    return {**_wishes(town, "exact", rng), name: rng.choice(wanted)}


def instruction(goal: Goal, town: Town, rng: random.Random) -> str:
    """The goal in words."""
    word: Callable[[str, str], str] = lambda question, answer: town.wording(question, answer, "instruction")  # noqa: E731
    answers = list(goal.answers.items())
    rng.shuffle(answers)
    said = [f"{question} {word(question, answer)}" for question, answer in answers]
    rng.shuffle(said)
    if goal.family == "cancel":
        return " , ".join((f"cancel {goal.place}", *said))
    any_time = (goal.earliest, goal.latest) == (TIMES[0], TIMES[-1])
    window = " to ".join(map(spoken, dict.fromkeys((goal.earliest, goal.latest))))
    table = f"{'' if any_time else f'{window} '}{word('seating', goal.seating)}{' if possible' if goal.prefers else ''}"
    parts: Sequence[str] = (
        " ".join(filter(None, ("move" if goal.family == "change" else "book", goal.cuisine, goal.place))),
        f"under ${goal.most_price}" if goal.most_price else "",
        f"within {goal.most_walk} min" if goal.most_walk else "",
        f"safe {goal.allergy}" if goal.allergy else "",
        f"day {goal.day}",
        f"{'table' if any_time else 'time'} {table}",
        f"guests {goal.guests}",
        *said,
    )
    return " , ".join(filter(None, parts))
