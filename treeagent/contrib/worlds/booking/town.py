"""A town of restaurants, drawn from a seed, and the questions that its site asks."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

NAMES = tuple(
    "amber birch cobalt dune ember fern grove harbor iris juniper kettle lantern meadow nutmeg olive pebble".split()  # noqa: SIM905
)
CUISINES = ("thai", "greek", "indian", "french")
DAYS = ("thu", "fri", "sat", "sun")
TIMES = ("1800", "1830", "1900", "1930", "2000", "2030", "2100")
GUESTS = ("two", "four", "six", "eight")
ALLERGIES = ("nuts", "dairy", "gluten", "fish")


def _table(text: str) -> dict[str, tuple[tuple[str, ...], ...]]:
    """Read lines ``field: value=another wording=another wording, value=...``."""
    rows = (line.split(":") for line in text.strip().splitlines())
    return {name.strip(): tuple(tuple(each.strip().split("=")) for each in row.split(",")) for name, row in rows}


QUESTIONS = _table("""
    seating: terrace=outdoor=garden, bar=counter=stools, window=view=glass, booth=alcove=nook
    menu: regular=carte=usual, chef=tasting=courses, meatless=vegetarian=plants, fixed=set=daily
    occasion: birthday=cake=candles, wedding=anniversary=roses, business=work=office, casual=ordinary=plain
    arrival: car=parking=garage, taxi=cab=ride, bicycle=bike=cycle, train=rail=station
    contact: email=mail=inbox, phone=call=ring, text=message=sms, letter=post=paper
    payment: card=credit=plastic, voucher=coupon=gift, cash=coins=notes, transfer=bank=wire
    terms: flexible=refundable=free, saver=strict=final, standard=normal=basic, premium=plus=gold
    drinks: wine=grape=red, beer=lager=ale, juice=fruit=squash, water=still=tap
    music: quiet=silent=calm, piano=keys=pianist, guitar=strings=chords, jazz=swing=trio
    help: highchair=toddler=baby, wheelchair=ramp=access, dog=puppy=pet, pram=buggy=stroller
    bread: rye=dark=black, corn=maize=yellow, oat=flakes=porridge, spelt=grain=wheat
    dessert: sorbet=ice=frozen, tart=pie=pastry, cheese=brie=platter, figs=dates=dried
    account: member=regulars=club, visitor=guest=once, family=household=home, company=firm=employer
    offer: decline=refuse=never, cocktail=spritz=aperitif, upgrade=better=larger, magazine=news=monthly
    cutlery: forks=silver=steel, sticks=chopsticks=bamboo, spoons=ladle=round, fingers=hands=bare
    coats: cloakroom=wardrobe=hooks, chair=seat=lap, locker=box=key, none=no=without
""")
"""What a booking asks besides guests, day and time: each answer with its wordings."""
CANCELLING = _table("""
    reason: ill=sick=unwell, travel=trip=away, weather=rain=storm, mistake=wrong=error
    refund: card=credit=plastic, voucher=coupon=gift, donate=charity=give, transfer=bank=wire
    notice: email=mail=inbox, phone=call=ring, text=message=sms, letter=post=paper
    return: soon=week=shortly, later=month=someday, never=no=not, unsure=maybe=perhaps
    rating: great=super=five, good=nice=four, fair=middling=three, poor=bad=one
    deposit: keep=leave=stay, split=half=share, claim=full=back, waive=drop=skip
    waitlist: join=enter=queue, pass=neither=decline, friend=other=tell, alert=ping=watch
    data: erase=delete=wipe, store=hold=retain, export=copy=download, hide=mask=blur
""")
"""What cancelling a booking asks."""


class Place(NamedTuple):
    """A restaurant. It has each of its seatings at each of its times of a day, one table each."""

    name: str
    cuisine: str
    price: int
    """Dollars a head."""
    walk: int
    """Minutes from the station."""
    seats: str
    """Most guests, one of ``GUESTS``."""
    safe: tuple[str, ...]
    """Allergies that its kitchen can serve."""
    seatings: tuple[str, ...]
    times: tuple[tuple[str, tuple[str, ...]], ...]
    """For each day on which it is not sold out, the times of its tables."""

    def guests(self) -> tuple[str, ...]:
        """The parties that it has room for."""
        return GUESTS[: GUESTS.index(self.seats) + 1]


Answers = tuple[tuple[str, str], ...]
"""What was chosen: (question, answer)."""


class Record(NamedTuple):
    """A table that is held or booked, or was cancelled."""

    number: int
    owner: str
    kind: str
    """"held", "booked" or "cancelled"."""
    place: str
    answers: Answers
    cancelling: Answers = ()
    """What was answered when it was cancelled."""

    def table(self) -> tuple[str, ...]:
        """Place, day, time and seating, which two tables never share."""
        given = dict(self.answers)
        return self.place, *(given.get(name, "") for name in ("day", "time", "seating"))


Ledger = tuple[Record, ...]


@dataclass(frozen=True, eq=False)
class Town:
    """Everything about the restaurants and their site that no visit changes."""

    seed: int
    places: Mapping[str, Place]
    questions: tuple[str, ...]
    """What a booking asks after guests, day and time."""
    cancelling: tuple[str, ...]
    wordings: int
    """How many wordings of an answer pages and instructions use."""
    booked: Ledger
    """The bookings of the user at the start of a visit."""

    def wording(self, question: str, answer: str, where: str) -> str:
        """The word for an answer, such as "outdoor" for "terrace": on the pages of a place, or in an instruction. Pages
        write it with a capital."""
        for words in QUESTIONS.get(question) or CANCELLING.get(question, ()):
            if words[0] == answer:
                return words[number(self.seed, where, question, answer) % self.wordings]
        return answer


def spoken(time: str) -> str:
    """A time as instructions say it: "730pm" for "1930"."""
    return f"{int(time[:2]) - 12}{time[2:].replace('00', '')}pm"


def number(*parts: object) -> int:
    """A number that depends on every part alone."""
    return crc32("/".join(map(str, parts)).encode()) >> 3


@lru_cache(maxsize=4096)
def draw_town(seed: int, size: int, wordings: int, places: int) -> Town:
    """Draw a town. ``size`` is the number of questions of a booking, guests, day and time included."""
    rng = random.Random(f"town {seed}")
    names = rng.sample(NAMES, places)
    cuisines = [CUISINES[index % len(CUISINES)] for index in range(places)]
    found = {name: _place(rng, name, cuisine) for name, cuisine in zip(names, cuisines, strict=True)}
    asked = rng.sample([name for name in QUESTIONS if name != "seating"][: size - 3], size - 3)
    cancelling = rng.sample(list(CANCELLING)[:size], min(size, len(CANCELLING)))
    booked: list[Record] = []
    for name in rng.sample(names, 3):
        place = found[name]
        day, times = rng.choice(place.times)
        answers = {"guests": rng.choice(GUESTS[:2]), "day": day, "time": rng.choice(times)}
        answers |= {"seating": rng.choice(place.seatings)} | {each: QUESTIONS[each][0][0] for each in asked}
        booked.append(Record(len(booked), "user", "booked", name, tuple(answers.items())))
    return Town(seed, found, tuple(asked), tuple(cancelling), wordings, tuple(booked))


def _place(rng: random.Random, name: str, cuisine: str) -> Place:
    days = sorted(rng.sample(range(len(DAYS)), 3))
    return Place(
        name,
        cuisine,
        price=rng.randrange(15, 60, 5),
        walk=rng.randrange(2, 30, 3),
        seats=rng.choice(GUESTS[1:]),
        safe=tuple(sorted(rng.sample(ALLERGIES, 2))),
        seatings=tuple(sorted(rng.sample([each[0] for each in QUESTIONS["seating"]], 2))),
        times=tuple((DAYS[day], tuple(sorted(rng.sample(TIMES, 2)))) for day in days),
    )
