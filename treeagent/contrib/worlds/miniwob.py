"""MiniWoB++ in a headless Chromium: small web pages, shown as lists of elements and used by mouse and keyboard."""

import functools
import os
import random
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from treeagent.envs.base import Env, StepResult, ToolSpec, probability, required, seeded_tasks, task_to_play
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

_BEFORE = """
const real = Date, shift = real.UTC(2024, 0, 15, 12) - real.now(), now = () => real.now() + shift;
window.Date = new Proxy(real, {
  construct: (target, given, made) => Reflect.construct(target, given.length ? given : [now()], made),
  apply: () => new real(now()).toString(),
  get: (target, name) => (name === 'now' ? now : target[name]),
});
const pending = new Set(), later = setTimeout, never = clearTimeout, frame = requestAnimationFrame;
window.setTimeout = (call, delay, ...given) => {
  const timer = later(() => {
    pending.delete(timer);
    typeof call === 'function' ? call(...given) : window.eval(call);
  }, delay);
  if (!(delay > 1000)) pending.add(timer);
  return timer;
};
window.clearTimeout = timer => { pending.delete(timer); never(timer); };
window.requestAnimationFrame = call => {
  const drawn = {};
  pending.add(drawn);
  return frame(time => { pending.delete(drawn); call(time); });
};
window.treeagentSettle = done => {
  const patience = performance.now() + 4000;
  const wait = () => frame(pending.size && performance.now() < patience ? wait : () => frame(() => done()));
  wait();
};
"""
"""Script that runs before a page's own scripts, to make observations reproducible. Every page starts on the same day,
because a calendar would show another task on another day. ``treeagentSettle`` waits, for at most four seconds, until
all timers of up to one second and all animation frames have run. Without this, observations would depend on the
machine's speed.
"""

_START = """
const [seed, mode, limit] = arguments;
if (window.jQuery) jQuery.fx.off = true;
const still = document.createElement('style');
still.textContent = '* { transition: none !important; animation: none !important; }';
document.head.appendChild(still);
core.EPISODE_MAX_TIME = limit;
Math.seedrandom(seed);
core.setDataMode(mode);
core.startEpisodeReal();
"""

_LIST = """
const roles = {
  A: 'link', BUTTON: 'button', TEXTAREA: 'textbox', IMG: 'image', LI: 'listitem', TD: 'cell', TH: 'cell',
  CANVAS: 'canvas', H1: 'heading', H2: 'heading', H3: 'heading', LABEL: 'label',
};
const inputs = {
  button: 'button', submit: 'button', reset: 'button', checkbox: 'checkbox', radio: 'radio', range: 'slider',
};
const apart = ['query', 'query-wrap', 'click-canvas', 'attention-canvas', 'reward-display', 'sync-task-cover'];
const drawn = ['rect', 'circle', 'ellipse', 'polygon', 'line', 'path', 'text', 'image'];
const used = [
  'link', 'button', 'textbox', 'checkbox', 'radio', 'slider', 'combobox', 'listbox', 'tab', 'menuitem', 'option',
];
const found = [], rows = [];
const plain = text => text.replace(/\\s+/g, ' ').trim();
const roleOf = element => {
  if (element.getAttribute('role')) return element.getAttribute('role');
  if (element.isContentEditable) return 'textbox';
  if (element.tagName === 'INPUT') return inputs[element.type] || 'textbox';
  if (element.tagName === 'SELECT') return element.multiple || element.size > 1 ? 'listbox' : 'combobox';
  return roles[element.tagName] || (drawn.includes(element.tagName) ? element.tagName : 'text');
};
const visit = element => {
  if (apart.includes(element.id) || ['SCRIPT', 'STYLE', 'NOSCRIPT'].includes(element.tagName)) return;
  if (element.tagName === 'IFRAME') return element.contentDocument && visit(element.contentDocument.body);
  const style = getComputedStyle(element);
  if (style.display === 'none' || style.opacity === '0') return;
  const box = element.getBoundingClientRect(), role = roleOf(element), use = used.includes(role);
  const own = plain([...element.childNodes].filter(node => node.nodeType === 3).map(node => node.data).join(' '));
  const shape = drawn.includes(element.tagName) || role === 'canvas' || role === 'image';
  const bare = !element.children.length && (style.cursor === 'pointer' || style.backgroundImage !== 'none');
  const large = shape ? Math.max(box.width, box.height) >= 3 : box.width * box.height > 0;
  const shown = large && style.visibility === 'visible' && box.right > 0 && box.bottom > 0;
  if (shown && (use || own || shape || bare)) {
    const field = ['INPUT', 'TEXTAREA', 'SELECT'].includes(element.tagName);
    let name = field ? (element.labels && element.labels.length ? plain(element.labels[0].textContent) : '')
      : plain(use ? element.textContent : own);
    name = name || element.getAttribute('aria-label') || element.title || element.alt || element.placeholder || '';
    const states = [];
    if (role === 'button' && field) name = element.value;
    else if (role === 'textbox') states.push('value ' + JSON.stringify(field ? element.value : element.innerText));
    else if (role === 'slider') states.push('value ' + element.value);
    if (!name && !shape) name = element.className || element.id || '';
    if (element.checked) states.push('checked');
    if (element.disabled) states.push('disabled');
    if (element === element.ownerDocument.activeElement) states.push('focused');
    if (element.tagName === 'SELECT') {
      const words = options => JSON.stringify(options.map(option => plain(option.text)));
      const options = [...element.options];
      states.push('selected ' + words(options.filter(option => option.selected)), 'options ' + words(options));
    }
    if (shape) {
      const [x, y] = [box.x + box.width / 2, box.y + box.height / 2].map(Math.round);
      states.push(`at ${x},${y} size ${Math.round(box.width)}x${Math.round(box.height)}`);
      const fill = element.getAttribute('fill') || element.style.fill;
      if (fill) states.push('fill ' + fill);
    }
    const hidden = element.scrollHeight - element.clientHeight;
    if (hidden > 1 && element.clientHeight && ['auto', 'scroll'].includes(style.overflowY)) {
      states.push(`scrolled ${Math.round(element.scrollTop)} of ${hidden}`);
    }
    found.push(element);
    rows.push([role, plain(String(name)).slice(0, 500), states.join(' ')]);
  }
  if (element.tagName !== 'SELECT') [...element.children].forEach(visit);
};
visit(document.body);
window.treeagentFound = found;
const asked = core.getUtterance();
return [asked.utterance || asked, rows, WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL];
"""

_POINT = """
const element = (window.treeagentFound || [])[arguments[0] - 1];
if (!element || !element.isConnected) return null;
element.scrollIntoView({block: 'nearest', inline: 'nearest'});
const box = element.getClientRects()[0];
if (!box) return null;
const frame = element.ownerDocument === document ? null : element.ownerDocument.defaultView.frameElement;
const [left, top] = frame ? [frame.getBoundingClientRect().x, frame.getBoundingClientRect().y] : [0, 0];
return [Math.floor(left + box.x + box.width / 2), Math.floor(top + box.y + box.height / 2)];
"""

_SELECT = """
const element = window.treeagentFound[arguments[0] - 1];
const option = [...(element.options || [])].find(each => each.text.replace(/\\s+/g, ' ').trim() === arguments[1]);
if (!option) return false;
option.selected = true;
for (const name of ['input', 'change']) element.dispatchEvent(new Event(name, {bubbles: true}));
return true;
"""

_SCROLL = """
let element = window.treeagentFound[arguments[0] - 1];
while (element && element.scrollHeight <= element.clientHeight + 1) element = element.parentElement;
if (!element) return false;
element.scrollTop += arguments[1] * Math.max(10, Math.floor(0.8 * element.clientHeight));
return true;
"""


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
            driver.execute_script(_START, str(task.seed), mode, _NO_END)
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
        """Return 1 if the page has given its full reward, otherwise 0."""
        return float(self._ended and self._reward >= 1.0)

    def demonstrator(self, noise: float) -> "MiniWoBDemonstrator":
        return MiniWoBDemonstrator(self, noise)

    def close(self) -> None:
        """End the browser."""
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
            self._driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _BEFORE})
            self._driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "UTC"})
        return self._driver

    def _look(self) -> str:
        """Wait until the page has settled, and return the list of its elements as text."""
        self._driver.execute_async_script("window.treeagentSettle(arguments[0])")
        self.utterance, rows, self._ended, reward = self._driver.execute_script(_LIST)
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
        """Execute a call. Returns why it is impossible, or an empty text."""
        ref = str(arguments["ref"]).strip()
        point = self._driver.execute_script(_POINT, int(ref)) if ref.isdecimal() else None
        if point is None:
            return f"no element {ref}, use 1 to {len(self.elements)}"
        if name == "click":
            return self._press(point)
        if name == "type":
            return self._press(point, str(arguments["text"]))
        if name == "select":
            done = self._driver.execute_script(_SELECT, int(ref), arguments["option"])
            return "" if done else f"element {ref} has no option {arguments['option']}"
        direction = {"up": -1, "down": 1}.get(str(arguments["direction"]))
        if direction is None:
            return "direction must be up or down"
        return "" if self._driver.execute_script(_SCROLL, int(ref), direction) else f"element {ref} does not scroll"

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
def pages() -> Mapping[str, str]:
    """Return the addresses of the pages that ship with MiniWoB++, by name, sorted."""
    html = Path(required("miniwob").__file__).parent / "html"
    files = {file.stem: file for file in html.glob("miniwob/*.html")}
    files |= {f"flight.{file.parent.name}": file for file in html.glob("flight/*/wrapper.html")}
    return {name: file.as_uri() for name, file in sorted(files.items())}


def _browser_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that a call raises if the browser or its driver has ended."""
    from selenium.common.exceptions import WebDriverException
    from urllib3.exceptions import HTTPError

    return WebDriverException, HTTPError


def _cause(error: Exception) -> str:
    """Return the error's type and message, without the browser's stack trace."""
    return f"{type(error).__name__}: {getattr(error, 'msg', error)}"


def _program(*names: str) -> str:
    for name in names:
        if path := shutil.which(name):
            return path
    raise UserError(
        f"{names[0]} is not installed: MiniWoB++ needs a browser, as of apt-get install chromium chromium-driver"
    )
