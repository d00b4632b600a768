"""MiniWoB++ in a headless Chromium: small web pages, shown as lists of elements and used by mouse and keyboard."""

import functools
import os
import random
import re
import shutil
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from treeagent.contrib.worlds import required, seeded_tasks
from treeagent.envs.base import Env, StepResult, ToolSpec, probability, task_to_play
from treeagent.envs.calls import read_call, text_tool
from treeagent.envs.worker import EnvCrashed
from treeagent.types import Split, Task, ToolCall, UserError

_FLAGS = (
    "--headless=new",
    "--window-size=800,900",
    "--allow-file-access-from-files",  # some pages contain others in a frame
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--remote-debugging-pipe",  # it closes when the driver is killed, which ends the browser, too
)
_SECONDS = 20
"""Time limit, in seconds, for loading a page and for each script."""
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


class Element(NamedTuple):
    """A visible element as listed in the observation. Its number is its position in the list, from 1."""

    role: str
    name: str
    state: str


class MiniWoBEnv(Env):
    """A page of MiniWoB++ in Chromium, as a numbered list of its elements. Search returns to an earlier state by
    reloading the page and replaying the actions.

    Tasks are seeds. Each split has every third seed, but a page with few variants shows the same variant under many
    seeds. Time has no influence: the page has no time limit, its date is fixed, and jQuery and CSS animations are off.
    A success is the page's full reward before its decay over time. Dragging is not supported."""

    extra = "miniwob"
    options_type = MiniWoBOptions

    def __init__(self, options: MiniWoBOptions | None = None) -> None:
        self.options = options or MiniWoBOptions()
        if self.options.page not in pages():
            names = ", ".join(list(pages())[:3])
            raise UserError(f"page is {self.options.page!r}: give one that MiniWoB++ ships, such as {names}")
        self._browser = _program("chromium", "chromium-browser", "google-chrome"), _program("chromedriver")
        self._driver: Any = None
        self._ended, self._reward = False, 0.0
        self.utterance = ""
        """The page's instruction."""
        self.elements: Sequence[Element] = ()

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        from selenium.webdriver.support.wait import WebDriverWait

        task = task_to_play(self, seed, options)
        try:
            driver = self._start_driver()
            driver.get(pages()[self.options.page])
            page = WebDriverWait(driver, _SECONDS, 0.02)
            page.until(lambda _: driver.execute_script("return window.core && core.cover_div !== null"))
            # Some pages use different words in the mode "test".
            mode = "test" if task.split == "test" else "train"
            driver.execute_script(_script("start"), str(task.seed), mode, _NO_END)
            page.until(lambda _: driver.execute_script("return WOB_TASK_READY"))
            return self._look(), {}
        except _browser_errors() as error:
            self.close()
            raise EnvCrashed(f"page {self.options.page}, its start: {_cause(error)}") from error

    def step(self, action: str | ToolCall) -> StepResult:
        if self._driver is None:
            raise ValueError("no episode has begun: call reset first")
        call = "the episode is over" if self._ended else read_call(action, TOOLS)
        try:
            error = call if isinstance(call, str) else self._act(call.name, call.arguments)
            if error:
                return error, 0.0, self._ended, False, {"tool_error": error}
            observation = self._look()
        except _browser_errors() as broken:
            self.close()
            raise EnvCrashed(f"page {self.options.page}, {call}: {_cause(broken)}") from broken
        return observation, self.verify(), self._ended, False, {}

    def tools(self) -> Sequence[ToolSpec]:
        return TOOLS

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        return seeded_tasks(f"miniwob-{self.options.page}", _PROMPT, split, count, start)

    def verify(self) -> float:
        return float(self._ended and self._reward >= 1.0)

    def demonstrator(self, noise: float) -> "MiniWoBDemonstrator":
        return MiniWoBDemonstrator(self, noise)

    def close(self) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            try:
                driver.quit()
            except _browser_errors():  # it has ended already
                driver.service.stop()

    def _start_driver(self) -> Any:
        from selenium import webdriver

        if self._driver is None:
            options = webdriver.ChromeOptions()
            options.binary_location = self._browser[0]
            options.unhandled_prompt_behavior = "accept"
            for flag in _FLAGS:
                options.add_argument(flag)
            if os.geteuid() == 0:  # Chromium's sandbox does not work as root; the pages come from the package
                options.add_argument("--no-sandbox")
            service = webdriver.ChromeService(executable_path=self._browser[1])
            self._driver = webdriver.Chrome(options=options, service=service)
            self._driver.set_page_load_timeout(_SECONDS)
            self._driver.set_script_timeout(_SECONDS)
            self._driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _script("before")})
            self._driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "UTC"})
        return self._driver

    def _look(self) -> str:
        """Wait until the page has settled, and return the list of its elements as text."""
        self._driver.execute_async_script("window.treeagentSettle(arguments[0])")
        self.utterance, rows, self._ended, reward = self._driver.execute_script(_script("list"))
        self._reward = float(reward)
        if self._ended:
            self.elements = ()
            return "the page has ended the task"
        self.elements = [Element(*row) for row in rows]
        lines = [f"task: {self.utterance}"]
        for number, (role, name, state) in enumerate(self.elements, 1):
            lines.append(f"[{number}] {role}" + f' "{name}"' * bool(name) + f" {state}" * bool(state))
        return "\n".join(lines)

    def _act(self, name: str, arguments: Mapping[str, object]) -> str:
        ref = str(arguments["ref"]).strip()
        point = self._driver.execute_script(_script("point"), int(ref)) if ref.isdecimal() else None
        if point is None:
            return f"no element {ref}, use 1 to {len(self.elements)}"
        if name == "click":
            return self._press(point)
        if name == "type":
            return self._press(point, str(arguments["text"]))
        if name == "select":
            done = self._driver.execute_script(_script("select"), int(ref), arguments["option"])
            return "" if done else f"element {ref} has no option {arguments['option']}"
        direction = {"up": -1, "down": 1}.get(str(arguments["direction"]))
        if direction is None:
            return "direction must be up or down"
        return (
            ""
            if self._driver.execute_script(_script("scroll"), int(ref), direction)
            else f"element {ref} does not scroll"
        )

    def _press(self, point: Sequence[int], text: str | None = None) -> str:
        """Click at a point of the window and, if there is a ``text``, replace the content of the field by it. Returns
        why this is impossible, or an empty text."""
        from selenium.common.exceptions import MoveTargetOutOfBoundsException
        from selenium.webdriver import ActionChains, Keys
        from selenium.webdriver.common.actions.action_builder import ActionBuilder

        mouse = ActionBuilder(self._driver, duration=0)
        mouse.pointer_action.move_to_location(*point).click()
        try:
            mouse.perform()
        except MoveTargetOutOfBoundsException:
            return "the element is out of sight"
        if text is not None:
            keys = ActionChains(self._driver, duration=0)
            keys.key_down(Keys.CONTROL).send_keys("a").key_up(Keys.CONTROL).send_keys(Keys.DELETE)
            keys.send_keys(text.replace("\n", Keys.ENTER)).perform()
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


@functools.cache
def pages() -> Mapping[str, str]:
    """Return the addresses of the pages that ship with MiniWoB++, by name, sorted."""
    html = Path(required("miniwob").__file__).parent / "html"
    files = {file.stem: file for file in html.glob("miniwob/*.html")}
    files |= {f"flight.{file.parent.name}": file for file in html.glob("flight/*/wrapper.html")}
    return {name: file.as_uri() for name, file in sorted(files.items())}


def _browser_errors() -> tuple[type[Exception], ...]:
    from selenium.common.exceptions import WebDriverException
    from urllib3.exceptions import HTTPError

    return WebDriverException, HTTPError


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {getattr(error, 'msg', error)}"


def _program(*names: str) -> str:
    for name in names:
        if path := shutil.which(name):
            return path
    raise UserError(
        f"{names[0]} is not installed: MiniWoB++ needs a browser, as of apt-get install chromium chromium-driver"
    )
