"""The rules of the site: what each page shows, and what each click does. Pure functions of frozen values."""

from functools import lru_cache
from typing import NamedTuple

from treeagent.contrib.worlds.booking.town import (
    CANCELLING,
    CUISINES,
    QUESTIONS,
    Ledger,
    Place,
    Record,
    Town,
    number,
)


class Action(NamedTuple):
    """A click, or a call of the tool of this name."""

    tool: str
    value: str = ""


class Element(NamedTuple):
    """A button or link of a page, or something that its field takes."""

    name: str
    action: Action
    field: str = ""
    """"select" or "type": how the field takes it; empty for a button."""


class Page(NamedTuple):
    """A page, whatever its rendering."""

    kind: str
    heading: str
    notes: tuple[str, ...]
    elements: tuple[Element, ...]
    """What the page's field takes, if it has one, and then the buttons."""

    def numbered(self) -> list[tuple[Element, ...]]:
        """The elements in the order of their numbers, from 1: all that the field takes has one number."""
        field = tuple(each for each in self.elements if each.field)
        return [*filter(None, [field]), *((each,) for each in self.elements if not each.field)]

    def filled(self, text: str) -> Element | None:
        """What a text in the page's field means, capitals aside."""
        meant = text.strip().lower()
        return next((each for each in self.elements if each.field and each.name.lower() == meant), None)


class Rules(NamedTuple):
    """The dials of the site."""

    holds: int = 1
    """Bookings, changes or cancellations that may be begun. With 1, every choice in them is final."""
    hold_steps: int = 60
    """Steps after which a held table is lost."""
    popups: bool = False
    """The first page is covered by a question about cookies."""
    slow: float = 0.0
    """Probability that a page loads slowly; a third of such pages fail."""
    fields: bool = False
    """Some questions have a field in place of buttons."""

    def field(self, question: str) -> str:
        return _FIELDS.get(question, "") if self.fields else ""


_FIELDS = {"cuisine": "select", "guests": "select"} | dict.fromkeys(("occasion", "contact", "help", "notice"), "type")
"""The questions that a site with fields has fields for."""


class Session(NamedTuple):
    """A visit of one user."""

    owner: str = "user"
    page: str = "home"
    cuisine: str = ""
    place: str = ""
    booking: int = -1
    """Number of the booking that is shown, changed or cancelled; -1: a new one."""
    cancels: bool = False
    answers: tuple[tuple[str, str], ...] = ()
    begun: int = 0
    """Forms that were begun."""
    clock: int = 0
    held: int = -1
    """The clock at which a table was held; -1: none is."""
    covered: str = ""
    """"cookies", "slow" or "failed": what stands before the page."""
    said: str = ""
    """What the site says about the last click."""


def start(rules: Rules, owner: str = "user") -> Session:
    return Session(owner, covered="cookies" if rules.popups else "")


def questions(town: Town, session: Session) -> tuple[str, ...]:
    """What the form asks, in order. The time includes the seating."""
    return town.cancelling if session.cancels else ("guests", "day", "time", *town.questions)


def is_over(session: Session) -> bool:
    return session.page in ("sent", "none")


def is_free(ledger: Ledger, session: Session, place: str, day: str, time: str, seating: str) -> bool:
    """Whether nobody has this table. The booking that is being changed keeps its own table until it is sent."""
    table = (place, day, time, seating)
    others = (each for each in ledger if each.number != session.booking and each.kind != "cancelled")
    return all(each.table() != table for each in others)


def free_tables(town: Town, ledger: Ledger, session: Session, day: str) -> list[tuple[str, str]]:
    """(time, seating) of each free table of the open place on a day."""
    place = town.places[session.place]
    times = dict(place.times).get(day, ())
    tables = [(time, seating) for time in times for seating in place.seatings]
    return [(time, seating) for time, seating in tables if is_free(ledger, session, place.name, day, time, seating)]


NONE_FITS = Element("none fits", Action("none_fits"))
BACK = Element("back", Action("back"))


@lru_cache(maxsize=4096)
def view(town: Town, rules: Rules, ledger: Ledger, session: Session) -> Page:
    """The page that the user sees."""
    if session.covered:
        return _cover(session.covered)
    said = (session.said,) if session.said else ()
    match session.page:
        case "home":
            links = [Element(each.capitalize(), Action("search", each), rules.field("cuisine")) for each in CUISINES]
            return Page("home", "cuisine", said, (*links, Element("my bookings", Action("my_bookings"))))
        case "results":
            found = [each for _, each in sorted(town.places.items()) if each.cuisine == session.cuisine]
            rows = [
                Element(f"{each.name.capitalize()} ${each.price} {each.walk} min", Action("open", each.name))
                for each in found
            ]
            return Page("results", session.cuisine, said, (*rows, BACK))
        case "place":
            place = town.places[session.place]
            book = [Element("book", Action("book"))] if session.begun < rules.holds else []
            return Page("place", place.name, said + _facts(town, place), (*book, BACK, NONE_FITS))
        case "bookings":
            mine = [each for each in ledger if (each.owner, each.kind) == (session.owner, "booked")]
            rows = [Element(_brief(each), Action("open_booking", str(each.number))) for each in mine]
            return Page("bookings", "my bookings", said, (*rows, BACK))
        case "booking":
            names = ("change", "cancel") if session.begun < rules.holds else ()
            links = [Element(each, Action(each)) for each in names]
            return Page("booking", _brief(_record(ledger, session.booking)), said, (*links, BACK))
        case "form":
            return _form(town, rules, ledger, session, said)
        case _:
            return Page("end", "thank you , your visit is over", (), ())


def _cover(covered: str) -> Page:
    match covered:
        case "cookies":
            links = [Element(each, Action("cookies", each)) for each in ("accept", "reject")]
            return Page("cover", "cookies", (), tuple(links))
        case "slow":
            return Page("cover", "loading", (), (Element("wait", Action("wait")), Element("reload", Action("reload"))))
        case _:
            return Page("cover", "page failed", (), (Element("reload", Action("reload")),))


def _facts(town: Town, place: Place) -> tuple[str, ...]:
    days = " ".join(day.capitalize() for day, _ in place.times)
    return (
        f"${place.price} {place.walk} min up to {place.seats.capitalize()}",
        f"{days} {_seatings(town, place)}",
        f"safe {' '.join(each.capitalize() for each in place.safe)}",
    )


def _seatings(town: Town, place: Place) -> str:
    return " ".join(town.wording("seating", each, place.name).capitalize() for each in place.seatings)


def _brief(record: Record) -> str:
    given = dict(record.answers)
    return " ".join(each.capitalize() for each in (record.place, given["day"], given["time"]))


def _form(town: Town, rules: Rules, ledger: Ledger, session: Session, said: tuple[str, ...]) -> Page:
    given, place = dict(session.answers), town.places[session.place]
    left = [each for each in questions(town, session) if each not in given]
    again = (Element("start over", Action("start_over")),) if session.begun < rules.holds else ()
    if not left:
        words = [town.wording(question, answer, place.name) for question, answer in session.answers]
        shown = " ".join(each.capitalize() for each in (place.name, *words))
        return Page("review", "review", (shown,), (Element("send", Action("send")), *again))
    question = left[0]
    match question:
        case "guests":
            options = [(each, each.capitalize()) for each in place.guests()]
        case "day":
            days = [(day, times) for day, times in place.times if free_tables(town, ledger, session, day)]
            options = [(day, f"{day.capitalize()} {' '.join(times)}") for day, times in days]
            said = (*said, _seatings(town, place))
        case "time":
            tables = free_tables(town, ledger, session, given["day"])
            named = [(time, seating, town.wording("seating", seating, place.name)) for time, seating in tables]
            options = [(f"{time} {seating}", f"{time} {word.capitalize()}") for time, seating, word in named]
        case _:
            found = [each[0] for each in QUESTIONS.get(question) or CANCELLING[question]]
            options = [(each, town.wording(question, each, place.name).capitalize()) for each in found]
    stop = () if session.held >= 0 or session.cancels else (NONE_FITS,)
    elements = [Element(word, Action("answer", value), rules.field(question)) for value, word in options]
    return Page("form", question, said, (*elements, *again, *stop))


def step(town: Town, rules: Rules, ledger: Ledger, session: Session, action: Action) -> tuple[Ledger, Session]:
    """What follows a click on one of the page's elements."""
    if action not in [each.action for each in view(town, rules, ledger, session).elements]:
        raise ValueError(f"no {action.tool} {action.value}".rstrip() + " on this page")
    before, session = session, session._replace(clock=session.clock + 1, said="")
    if session.held >= 0 and session.clock - session.held > rules.hold_steps:
        return _released(ledger, session), _left(session, "your table was given away")
    ledger, session = _taken(town, ledger, session, action)
    if session.covered != "" or is_over(session) or action.tool == "wait" or before.covered == "cookies":
        return ledger, session
    draw = number(town.seed, "load", session.clock) % 3000 / 3000
    if draw < rules.slow:
        session = session._replace(covered="failed" if draw < rules.slow / 3 else "slow")
    return ledger, session


def _taken(town: Town, ledger: Ledger, session: Session, action: Action) -> tuple[Ledger, Session]:
    value = action.value
    match action.tool:
        case "cookies" | "wait" | "reload":
            return ledger, session._replace(covered="")
        case "search":
            return ledger, session._replace(page="results", cuisine=value)
        case "open":
            return ledger, session._replace(page="place", place=value)
        case "my_bookings":
            return ledger, session._replace(page="bookings")
        case "open_booking":
            found = _record(ledger, int(value))
            return ledger, session._replace(page="booking", booking=found.number, place=found.place)
        case "back":
            towards = {"results": "home", "place": "results", "bookings": "home", "booking": "bookings"}
            return ledger, session._replace(page=towards[session.page], booking=-1)
        case "book" | "change" | "cancel":
            cancels = action.tool == "cancel"
            return ledger, session._replace(page="form", begun=session.begun + 1, answers=(), cancels=cancels)
        case "start_over":
            return _released(ledger, session), _left(session, "start again")
        case "none_fits":
            return ledger, session._replace(page="none")
        case "answer":
            return _answered(town, ledger, session, value)
    return _sent(ledger, session), session._replace(page="sent", held=-1)


def _answered(town: Town, ledger: Ledger, session: Session, value: str) -> tuple[Ledger, Session]:
    given = dict(session.answers)
    question = next(each for each in questions(town, session) if each not in given)
    where = session.place
    if question != "time":
        said = f"{question} {town.wording(question, value, where).capitalize()}"
        return ledger, session._replace(answers=(*session.answers, (question, value)), said=said)
    time, seating = value.split()
    answers = (*session.answers, ("time", time), ("seating", seating))
    said = f"held {time} {town.wording('seating', seating, where).capitalize()}"
    held = Record(_next(ledger), session.owner, "held", where, answers)
    return (*ledger, held), session._replace(answers=answers, said=said, held=session.clock)


def _released(ledger: Ledger, session: Session) -> Ledger:
    """The ledger without the table that the user holds."""
    return tuple(each for each in ledger if (each.owner, each.kind) != (session.owner, "held"))


def _left(session: Session, said: str) -> Session:
    return session._replace(page="home", booking=-1, cancels=False, answers=(), held=-1, said=said)


def _sent(ledger: Ledger, session: Session) -> Ledger:
    """The ledger in which the form's booking is made, changed or cancelled."""
    kept = _released(ledger, session)
    if session.booking < 0:
        return (*kept, Record(_next(ledger), session.owner, "booked", session.place, session.answers))
    old = _record(kept, session.booking)
    new = old._replace(answers=session.answers)
    if session.cancels:
        new = old._replace(kind="cancelled", cancelling=session.answers)
    return tuple(new if each is old else each for each in kept)


def _record(ledger: Ledger, number: int) -> Record:
    return next(each for each in ledger if each.number == number)


def _next(ledger: Ledger) -> int:
    return 1 + max((each.number for each in ledger), default=-1)
