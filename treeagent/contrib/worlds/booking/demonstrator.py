"""A scripted user of the booking site, who checks each answer before giving the next."""

import random

from treeagent.contrib.worlds.booking.env import BookingEnv
from treeagent.contrib.worlds.booking.goals import Table, tables
from treeagent.contrib.worlds.booking.site import Action, questions
from treeagent.contrib.worlds.booking.town import spoken
from treeagent.envs.base import probability

_SLIPS = 0.8
"""Share of errors whose thought is right."""
_ELSEWHERE = 0.2
"""Share of errors that click another kind of element, where the page has some of the right kind."""
_HABITS = ("contact", "payment", "terms", "arrival")
"""Questions whose first option the user takes out of habit."""
_HABIT = 12
"""How much likelier a habit is than another error."""


class BookingDemonstrator:
    """Does what the goal asks for, hastily. Its thought checks first: whether the open restaurant fits, or whether the
    last answer was the wanted one, such as "drinks juice juice right". Then it says what it is going to click.

    With probability ``noise`` it misreads the goal or clicks beside, as it also does where an earlier error has left
    nothing right to click. At some questions it takes the first option out of habit, 12 times as often."""

    def __init__(self, env: BookingEnv, noise: float) -> None:
        self._env, self._noise = env, probability(noise)

    def act(self, rng: random.Random) -> tuple[str, str]:
        right = self._right()
        actions = [each.action for each in self._env.page().elements]
        good = [place for place, each in enumerate(actions) if each in right]
        others = [place for place in range(len(actions)) if place not in good]
        meant = clicked = good[0] if good else rng.choice(others)
        if self._asked() in _HABITS and rng.random() < _HABIT * self._noise:
            clicked = 0
        elif others and rng.random() < self._noise:
            alike = [each for each in others if actions[each].tool == actions[meant].tool]
            clicked = rng.choice(alike if alike and rng.random() >= _ELSEWHERE else others)
            meant = meant if rng.random() < _SLIPS else clicked
        thought = " ".join(filter(None, (self._check(), self._said(actions[meant]))))
        return thought, self._env.legal_actions()[clicked]

    def _asked(self) -> str:
        """The heading of the page: on a form, what it asks."""
        return self._env.page().heading.split()[0].lower()

    def _said(self, action: Action) -> str:
        """What an action is about, in the instruction's words."""
        town, heading = self._env.town(), self._asked()
        if action.tool not in ("search", "open", "answer"):
            return f"{heading} {action.tool.replace('_', ' ')}"
        if heading == "time":
            time, seating = action.value.split()
            return f"{heading} {self._table(time, seating)}"
        return f"{heading} {town.wording(heading, action.value, 'instruction')}"

    def _check(self) -> str:
        """Whether the last step did what it was meant to do."""
        goal, session = self._env.key, self._env.visit.session
        if session.page == "place":
            return self._fit()
        if session.page != "form" or not session.answers:
            return ""
        question, got = session.answers[-1]
        if question == "seating":
            given = dict(session.answers)
            fitting = [each[2:] for each in self._wanted() if each[1] == given["day"]]
            mine = given["time"], given["seating"]
            meant = mine if mine in fitting else (fitting or [(goal.earliest, goal.seating or got)])[0]
            return f"time {self._table(*meant)} {self._table(*mine)} {'right' if meant == mine else 'wrong'}"
        wanted = {"guests": goal.guests, "day": goal.day, **goal.answers}.get(question, got)
        words = [self._env.town().wording(question, each, "instruction") for each in (wanted, got)]
        return f"{question} {' '.join(words)} {'right' if wanted == got else 'wrong'}"

    def _fit(self) -> str:
        """Whether the open restaurant is the wanted one, or what it lacks, as far as its page shows."""
        goal, town = self._env.key, self._env.town()
        place = town.places[self._env.visit.session.place]
        if goal.place:
            return "fits" if place.name == goal.place else "differs"
        wishes = {
            "price": not goal.most_price or place.price <= goal.most_price,
            "walk": not goal.most_walk or place.walk <= goal.most_walk,
            "guests": goal.guests in place.guests(),
            goal.allergy: goal.allergy in place.safe,
            goal.day: goal.day in dict(place.times),
            town.wording("seating", goal.seating, "instruction"): goal.prefers or goal.seating in place.seatings,
        }
        return next((f"lacks {wish}" for wish, holds in wishes.items() if wish and not holds), "fits")

    def _table(self, time: str, seating: str) -> str:
        return f"{spoken(time)} {self._env.town().wording('seating', seating, 'instruction')}"

    def _wanted(self) -> list[Table]:
        """The wanted tables of the open restaurant."""
        return [each for each in tables(self._env.key, self._env.town()) if each[0] == self._env.visit.session.place]

    def _right(self) -> list[Action]:
        """The actions that are right on this page, as far as the user can know."""
        env, goal, session = self._env, self._env.key, self._env.visit.session
        town = env.town()
        if session.covered:
            return [Action("cookies", "reject"), Action("wait"), Action("reload")]
        match session.page:
            case "home":
                return [Action("my_bookings") if goal.booking >= 0 else Action("search", goal.cuisine)]
            case "results":
                return [self._next_place()]
            case "place":
                if goal.place == session.place and not tables(goal, town):
                    return [Action("none_fits")]
                return [Action("book" if self._wanted() else "back")]
            case "bookings":
                return [Action("open_booking", str(goal.booking))]
            case "booking":
                return [Action(goal.family if session.booking == goal.booking else "back")]
        given = dict(session.answers)
        left = [each for each in questions(town, session) if each not in given]
        if not left:
            return [Action("send")]
        question = left[0]
        if not tables(goal, town) and session.held < 0 and not session.cancels:
            return [Action("none_fits")]
        if question not in ("day", "time"):
            return [Action("answer", goal.guests if question == "guests" else goal.answers.get(question, ""))]
        fitting = [each for each in self._wanted() if given.get("day") in (None, each[1])]
        values = [each[1] if question == "day" else f"{each[2]} {each[3]}" for each in fitting]
        return [Action("answer", each) for each in values or ("",)]

    def _next_place(self) -> Action:
        """On a list of restaurants: the wanted one, or the next one whose price and way are as wished."""
        goal, session, town = self._env.key, self._env.visit.session, self._env.town()
        if session.cuisine != goal.cuisine:
            return Action("back")
        if goal.place:
            return Action("open", goal.place)
        shown = sorted(
            place.name
            for place in town.places.values()
            if place.cuisine == goal.cuisine and place.price <= goal.most_price and place.walk <= goal.most_walk
        )
        later = [name for name in shown if name > session.place]
        return Action("open", (later or shown)[0])
