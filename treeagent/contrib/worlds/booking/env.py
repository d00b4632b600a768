"""The environment of the booking site: its texts, its tools and a scripted user."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Literal, NamedTuple, cast

import orjson
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from treeagent.contrib.worlds.booking.browser import Screen
from treeagent.contrib.worlds.booking.goals import (
    FAMILIES,
    Family,
    Goal,
    draw_goal,
    instruction,
    verdict,
)
from treeagent.contrib.worlds.booking.site import (
    Action,
    Element,
    Page,
    Rules,
    Session,
    is_over,
    start,
    step,
    view,
)
from treeagent.contrib.worlds.booking.town import NAMES, Ledger, Town, draw_town
from treeagent.envs.base import Demonstrator, StepResult, ToolSpec, task_to_play
from treeagent.envs.calls import text_tool
from treeagent.envs.visit import CallRefused, ToolEnv
from treeagent.types import SPLITS, Split, Task, ToolCall, UserError


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class BookingOptions:
    """Settings of ``BookingEnv``."""

    size: int = Field(default=8, ge=3, le=18)
    """Questions that a booking answers, none of which can be answered anew: the horizon."""
    families: tuple[Family, ...] = Field(default=FAMILIES, min_length=1)
    """Kinds of tasks."""
    view: Literal["text", "browser", "tools"] = "text"
    """How the site is shown: pages with numbered elements to click, the same in Chromium, or JSON and a tool for each
    kind of element."""
    sandbox: bool = True
    """Whether Chromium's own sandbox is on, which it refuses to root."""
    screenshots: bool = False
    """Whether each page in Chromium also comes as a picture, for a multimodal model."""
    places: int = Field(default=12, ge=8, le=len(NAMES))
    """Restaurants of a town."""
    wordings: int = Field(default=1, ge=1, le=3)
    """Words for each answer, such as terrace and outdoor: above 1, instruction and pages may differ in their words."""
    holds: int = Field(default=1, ge=1)
    """Forms that may be begun in a visit. With 1, a wrong answer is final."""
    hold_steps: int = Field(default=60, ge=1)
    """Steps after which a table that was held for the user is given away."""
    popups: bool = False
    """A question about cookies covers the first page."""
    slow: float = Field(default=0.0, ge=0, lt=1)
    """Probability that a page loads slowly; a third of such pages fail and must be loaded again."""
    fields: bool = False
    """Cuisine and guests are selected from a list, and texts such as the contact are typed, in place of clicks."""


class Visit(NamedTuple):
    """The state of the site and of the user's visit."""

    ledger: Ledger
    session: Session


def _page_tool(name: str, description: str, *texts: str) -> ToolSpec:
    """A tool for an element of the page, by its number."""
    given = {"element": {"type": "integer"}} | {text: {"type": "string"} for text in texts}
    schema = {"type": "object", "properties": given, "required": list(given), "additionalProperties": False}
    return ToolSpec(name, description, schema)


CLICK = _page_tool("click", "Click the element of the page with this number.")
FIELDS = (
    _page_tool("select", "Choose an option of the list with this number.", "option"),
    _page_tool("type", "Type a text into the field with this number, and press Enter.", "text"),
)
TOOLS = (
    text_tool("search", "List restaurants of a cuisine.", "cuisine"),
    text_tool("open", "Show a restaurant of the list.", "restaurant"),
    text_tool("book", "Begin a booking at the open restaurant. Its answers are final."),
    text_tool("answer", "Answer the question of the form with one of its options. This is final.", "option"),
    text_tool("send", "Send the form, which ends the visit."),
    text_tool("start_over", "Leave the form, give up the table that it holds, and begin again."),
    text_tool("none_fits", "Report that no table fits what is wanted, which ends the visit."),
    text_tool("my_bookings", "List the user's bookings."),
    text_tool("open_booking", "Show a booking of the list.", "number"),
    text_tool("change", "Begin to change the open booking."),
    text_tool("cancel", "Begin to cancel the open booking."),
    text_tool("back", "Go back to the page before."),
    text_tool("cookies", "Answer the question about cookies.", "choice"),
    text_tool("wait", "Wait for a page that loads slowly."),
    text_tool("reload", "Load the page again."),
)


def page_text(page: Page) -> str:
    """The accessibility tree of a page as text: notes, heading, numbered elements."""
    names = (" ".join(filter(None, (each[0].field, *(one.name for one in each)))) for each in page.numbered())
    numbered = (f"{number} {name}" for number, name in enumerate(names, start=1))
    return "\n".join((*page.notes, page.heading, *numbered))


def page_json(page: Page) -> str:
    """A page as JSON, with the calls that are possible."""
    calls = [{"tool": each.action.tool, "value": each.action.value, "shows": each.name} for each in page.elements]
    shown = {"page": page.heading, "notes": page.notes, "calls": calls}
    return orjson.dumps(shown).decode()


class BookingEnv(ToolEnv[Goal, Visit]):
    """A restaurant-reservation site: find a place, book, change or cancel, answer by answer. What a form was told is
    final, and the last page looks alike whether the bookings are right or wrong."""

    options_type = BookingOptions
    key_type = Goal
    visit_type = Visit

    def __init__(self, options: BookingOptions | None = None) -> None:
        self.options = given = options or BookingOptions()
        self.rules = Rules(given.holds, given.hold_steps, given.popups, given.slow, given.fields)
        self._screen: Screen | None = None
        if given.view == "browser":
            self._screen = Screen(self.town(0), self.rules, given.sandbox, given.screenshots)
        elif given.screenshots:
            raise UserError(f"screenshots=true wants a browser, not view={given.view}: set view=browser")

    def town(self, seed: int | None = None) -> Town:
        """The town of a seed, by default that of the current task."""
        given = cast(int, self.task.data["town"]) if seed is None else seed
        return draw_town(given, self.options.size, self.options.wordings, self.options.places)

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        """Start ``options["task"]``, or training task number ``seed``."""
        task = task_to_play(self, seed, options)
        goal = self.key_of(task)
        town = self.town(goal.town)
        self._at = task, Visit(town.booked, start(self.rules))
        return self._shown(), self._pictures()

    def step(self, action: str | ToolCall) -> StepResult:
        said, reward, terminated, truncated, info = super().step(action)
        return said, reward, terminated, truncated, info or self._pictures()

    def _pictures(self) -> dict[str, object]:
        return {"images": self._screen.images} if self._screen is not None and self._screen.images else {}

    def tools(self) -> Sequence[ToolSpec]:
        if self.options.view == "tools":
            return TOOLS
        return (CLICK, *FIELDS) if self.options.fields else (CLICK,)

    def page(self) -> Page:
        """The page that is shown now."""
        return view(self.town(), self.rules, *self.visit)

    def act(self, call: ToolCall) -> str:
        if self.options.view == "tools":
            action = Action(call.name, *map(str, call.arguments.values()))
        else:
            given = call.arguments
            number, said = cast(int, given["element"]), str(given.get("option", given.get("text")))
            element = self._element(call.name, number, said)
            if self._screen is not None:
                text = said if element.field == "type" else element.name
                (_, ledger, session), shown = self._screen.use((self.town(), *self.visit), number, element.field, text)
                self.visit = Visit(ledger, session)
                return shown
            action = element.action
        if action not in [each.action for each in self.page().elements]:
            raise CallRefused(f"no {action.tool} {action.value} here")
        ledger, session = step(self.town(), self.rules, *self.visit, action)
        self.visit = Visit(ledger, session)
        return self._shown()

    def _element(self, tool: str, number: int, said: str) -> Element:
        """The element that a call is about."""
        page = self.page()
        found = dict(enumerate(page.numbered(), start=1)).get(number)
        if found is None or (found[0].field or CLICK.name) != tool:
            raise CallRefused(f"no element {number}" + f" to {tool}" * self.options.fields)
        element = page.filled(said) if found[0].field else found[0]
        if element is None:
            raise CallRefused(f"element {number} does not take {said}")
        return element

    def verdict(self) -> float | None:
        """1 if the bookings at the end are the wanted ones, else 0; None before the end."""
        ledger, session = self.visit
        return verdict(self.key, self.town(), ledger, session.page) if is_over(session) else None

    def legal_actions(self) -> list[str]:
        page = self.page()
        if self.options.view == "tools":
            return [f"{each.action.tool}[{each.action.value}]" for each in page.elements]
        return [
            f"{each.field}[{number}, {each.name}]" if each.field else f"{CLICK.name}[{number}]"
            for number, element in enumerate(page.numbered(), start=1)
            for each in element
        ]

    def state_key(self) -> str:
        ledger, session = self.visit
        counts = self.options.slow or session.held >= 0
        place = session._replace(clock=session.clock if counts else 0, said="")
        return f"{self.task.id} {place} {ledger}"

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return [self._task(split, index) for index in range(start, start + count)]

    def _task(self, split: Split, index: int) -> Task:
        families = self.options.families
        seed = len(SPLITS) * index + SPLITS.index(split)
        town, rng = self.town(seed), random.Random(f"goal {seed}")
        goal = draw_goal(town, families[index % len(families)], rng)
        prompt = instruction(goal, town, rng)
        return Task(f"booking{self.options.size}-{split}-{index}", prompt, split, seed, asdict(goal))

    def demonstrator(self, noise: float) -> Demonstrator:
        from treeagent.contrib.worlds.booking.demonstrator import BookingDemonstrator  # which imports this module

        return BookingDemonstrator(self, noise)

    def close(self) -> None:
        if self._screen is not None:
            self._screen.close()

    def _shown(self) -> str:
        if self._screen is not None:
            return self._screen.show((self.town(), *self.visit))
        page = self.page()
        return page_text(page) if self.options.view == "text" else page_json(page)
