"""MiniWoB++ in a headless Chromium: small web pages, shown as lists of elements and used by mouse and keyboard."""

import functools
import random
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from treeagent.contrib.worlds import required, seeded_tasks
from treeagent.contrib.worlds.browser import PageEnv, Tab
from treeagent.envs.base import probability, task_to_play
from treeagent.envs.calls import text_tool
from treeagent.envs.visit import CallRefused
from treeagent.types import Split, Task, ToolCall, UserError

_NO_END = 2**31 - 1
"""The longest time of a page's timer, in milliseconds. It replaces the page's own time limit."""
_PROMPT = "Do what the page asks for."

TOOLS = (
    text_tool("click", "Click the element with this number.", "ref"),
    text_tool("type", "Click a textbox and replace its text; a line break presses Enter.", "ref", "text"),
    text_tool("select", "Choose an option of a list.", "ref", "option"),
    text_tool("scroll", "Scroll an element up or down by most of its height.", "ref", "direction"),
)


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class MiniWoBOptions:
    """Settings of ``MiniWoBEnv``."""

    page: str = "click-button"
    """A page that ships with MiniWoB++, such as click-tab-2 or flight.Alaska."""
    sandbox: bool = True
    """Whether Chromium's own sandbox is on, which it refuses to root."""
    screenshots: bool = False
    """Whether observations hold a picture of the page beside its text."""


class Element(NamedTuple):
    """A visible element as listed in the observation. Its number is its position in the list, from 1."""

    role: str
    name: str
    state: str


class MiniWoBEnv(PageEnv[float | None]):
    """A page of MiniWoB++ in Chromium, as a numbered list of its elements. Search returns to an earlier state by
    reloading the page and replaying the actions.

    Tasks are seeds. Each split has every third seed, but a page with few variants shows the same variant under many
    seeds. Time has no influence: the page has no time limit, its date is fixed, and jQuery and CSS animations are off.
    A success is the page's full reward before its decay over time. Dragging is not supported."""

    extra = "miniwob"
    options_type = MiniWoBOptions
    specs = TOOLS

    def __init__(self, options: MiniWoBOptions | None = None) -> None:
        self.options = options or MiniWoBOptions()
        if self.options.page not in pages():
            names = ", ".join(list(pages())[:3])
            raise UserError(f"page is {self.options.page!r}: give one that MiniWoB++ ships, such as {names}")
        self.tab = Tab(sandbox=self.options.sandbox, script=_script("before"))
        self.utterance = ""
        """The page's instruction."""
        self.elements: Sequence[Element] = ()

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        task = task_to_play(self, seed, options)
        mode = "test" if task.split == "test" else "train"  # some pages use different words in the mode "test"

        async def begin(page: Any) -> tuple[str, float | None]:
            await page.goto(pages()[self.options.page])
            await page.wait_for_function("window.core && core.cover_div !== null")
            await page.evaluate(_function("start"), [str(task.seed), mode, _NO_END])
            await page.wait_for_function("WOB_TASK_READY")
            return await self._look(page)

        observation, reward = self.on_page(begin, f"page {self.options.page}, its start")
        self._at = task, reward
        return observation, dict(self.info)

    def act(self, call: ToolCall) -> str:
        async def take(page: Any) -> tuple[str, tuple[str, float | None]]:
            error = await self._act(page, call.name, call.arguments)
            return error, ("", None) if error else await self._look(page)

        error, (observation, reward) = self.on_page(take, f"page {self.options.page}, {call}")
        if error:
            raise CallRefused(error)
        self.visit = reward
        return observation

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return seeded_tasks(f"miniwob-{self.options.page}", _PROMPT, split, count, start)

    def verdict(self) -> float | None:
        return None if self.visit is None else float(self.visit >= 1.0)

    def demonstrator(self, noise: float) -> "MiniWoBDemonstrator":
        return MiniWoBDemonstrator(self, noise)

    async def _look(self, page: Any) -> tuple[str, float | None]:
        """Wait until the page has settled. Returns the list of its elements as text, and its reward if it has ended."""
        await page.evaluate("() => new Promise(window.treeagentSettle)")
        self.utterance, rows, ended, reward = await page.evaluate(_function("list"))
        if ended:
            self.elements = ()
            return "the page has ended the task", float(reward)
        self.elements = [Element(*row) for row in rows]
        await self.see(page, self.options.screenshots)
        lines = [f"task: {self.utterance}"]
        for number, (role, name, state) in enumerate(self.elements, 1):
            lines.append(f"[{number}] {role}" + f' "{name}"' * bool(name) + f" {state}" * bool(state))
        return "\n".join(lines), None

    async def _act(self, page: Any, name: str, arguments: Mapping[str, object]) -> str:
        """Make a call. Returns why this is impossible, or an empty text."""
        ref = str(arguments["ref"]).strip()
        point = await page.evaluate(_function("point"), [int(ref)]) if ref.isdecimal() else None
        if point is None:
            return f"no element {ref}, use 1 to {len(self.elements)}"
        if name == "select":
            done = await page.evaluate(_function("select"), [int(ref), arguments["option"]])
            return "" if done else f"element {ref} has no option {arguments['option']}"
        if name == "scroll":
            direction = {"up": -1, "down": 1}.get(str(arguments["direction"]))
            if direction is None:
                return "direction must be up or down"
            done = await page.evaluate(_function("scroll"), [int(ref), direction])
            return "" if done else f"element {ref} does not scroll"
        if not point:
            return "the element is out of sight"
        await page.mouse.click(*point)
        if name == "type":
            await page.keyboard.press("Control+A")
            await page.keyboard.press("Delete")
            await page.keyboard.type(str(arguments["text"]))
        return ""


class MiniWoBDemonstrator:
    """Clicks the element that the page's instruction quotes, or any element if it quotes none. With probability
    ``noise`` it clicks any element. It solves pages that need one click, and only explores the others.
    """

    def __init__(self, env: MiniWoBEnv, noise: float) -> None:
        self._env, self._noise = env, probability(noise)

    def act(self, rng: random.Random) -> tuple[str, str]:
        quoted = re.findall(r'"([^"]+)"', self._env.utterance)
        elements = self._env.elements
        meant = [number for number, each in enumerate(elements, 1) if each.name in quoted]
        wrong = not meant or rng.random() < self._noise
        number = rng.randrange(1, len(elements) + 1) if wrong and elements else (meant or [1])[0]
        return ", ".join(quoted), f"click[{number}]"


@functools.cache
def _script(name: str) -> str:
    """The script in the file ``name``.js."""
    return resources.files(__package__).joinpath(f"{name}.js").read_text(encoding="utf-8")


def _function(name: str) -> str:
    """The same as a function of a list, its arguments."""
    return f"(arguments) => {{{_script(name)}}}"


@functools.cache
def pages() -> Mapping[str, str]:
    """Return the addresses of the pages that ship with MiniWoB++, by name, sorted."""
    html = Path(required("miniwob").__file__).parent / "html"
    files = {file.stem: file for file in html.glob("miniwob/*.html")}
    files |= {f"flight.{file.parent.name}": file for file in html.glob("flight/*/wrapper.html")}
    return {name: file.as_uri() for name, file in sorted(files.items())}
