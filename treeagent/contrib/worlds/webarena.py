"""The apps of WebArena-Infinity (github.com/web-arena-x/webarena-infinity) in Chromium, from a clone, without a server.

An app is a page that holds all its state and PUTs it to ``/api/state`` after each change; a task's verifier, Python
code of the clone, reads the last one. Here the routes of the browser answer both."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from treeagent.contrib.worlds import some
from treeagent.contrib.worlds.browser import SITE, PageEnv, Tab
from treeagent.contrib.worlds.tasksets import split_of
from treeagent.envs.base import task_to_play
from treeagent.envs.calls import text_tool
from treeagent.envs.visit import CallRefused
from treeagent.types import REACHES_OUT, Split, Task, ToolCall, UserError

TOOLS = (
    text_tool("click", "Click the element with this ref.", "ref"),
    text_tool("type", "Replace the text of a field.", "ref", "text"),
    text_tool("select", "Choose an option of a list by its label.", "ref", "option"),
    text_tool("press", "Press a key, such as Enter or Escape.", "key"),
    text_tool("finish", "The task is done."),
)
KNOWN = {
    "elation-clinical-records": "a54f003abe47cd58",
    "elation-patient-communication": "ff3d829f9a493f46",
    "elation-prescriptions": "b8d1b157897d7fda",
    "figma-slides": "7da1ce94a21cfb6a",
    "figma-text-and-typography": "d36a90d3b5d47b36",
    "gitlab-plan-and-track": "bf599c0b6a1893c3",
    "gmail": "92136d95e7eb58a4",
    "gmail-accounts-and-contacts": "59f8a2c56734937f",
    "handshake-career-exploration": "7440349c48d09983",
    "linear-account-settings": "465f41724d4fc9a9",
    "paypal-my-wallet": "93e6dca2affbb006",
    "superhuman-general": "7abb6c055d29047d",
    "xero-invoicing": "c4eb5b77d27d28c7",
}
"""The digest of each app at commit 1ca7781. Its verifiers import requests, re, datetime and collections alone."""
_NOW = 1_772_366_400
"""The time at which every episode begins, in seconds: 1 March 2026, 12:00 UTC."""
_SETTLE_MS = 500
"""How far the page's clock is set forward after each action."""
_SCRIPT = "(() => { let seed = 1; Math.random = () => (seed = (seed * 48271) % 2147483647) / 2147483647; })()"
"""Random numbers that are equal in each episode (Park and Miller's generator)."""
_SETTLE = """async () => {
  for (const each of document.getAnimations()) try { each.finish() } catch { each.cancel() }
  await (await fetch("/api/state")).text()
}"""
"""Ends what moves by real time, and waits for the requests that the page has made before."""
_REACH = """each => {
  each.scrollIntoViewIfNeeded()
  const box = each.getBoundingClientRect()
  const found = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2)
  return !each.disabled && (each.contains(found) || found?.closest("label")?.control === each)
}"""
"""Whether a click would reach an element. Playwright's own check has a time limit, so that it depends on the load."""
_LAYOUT = re.compile(r"\s*- generic \[ref=\w+\]:?")


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class WebArenaOptions:
    """Settings of ``WebArenaEnv``."""

    path: Path
    """The folder of the clone."""
    app: str = "gmail"
    tasks: Literal["real", "function"] = "real"
    """Whether tasks are users' wishes or try one function of the app each."""
    digest: Annotated[str, REACHES_OUT] = ""
    """The digest of an app that differs from the known one: its verifiers run in this process."""
    sandbox: bool = True
    """Whether Chromium's own sandbox is on, which it refuses to root."""
    screenshots: bool = False
    """Whether each page also comes as a picture, for a multimodal model."""


class WebArenaEnv(PageEnv[bool]):
    """An app of WebArena-Infinity, as the accessibility tree of its page. The clock is fixed, so a replay on
    another day is equal. Tasks are split by their ids. The verdict is the verifier's, on the state of the app."""

    extra = "browser"
    options_type = WebArenaOptions
    specs = TOOLS

    def __init__(self, options: WebArenaOptions) -> None:
        self.options = options
        self._folder = _checked_folder(options)
        rows = json.loads((self._folder / f"{options.tasks}-tasks.json").read_text(encoding="utf-8"))
        self._rows: dict[str, Mapping[str, str]] = {f"webarena-{options.app}-{row['id']}": row for row in rows}
        self.tab = Tab(sandbox=options.sandbox, script=_SCRIPT, serve=self._serve)
        self._state, self._shown = b"", ""

    def tasks(self, split: Split, count: int, start: int = 0) -> Sequence[Task]:
        found = [Task(name, row["instruction"], split) for name, row in self._rows.items() if split_of(name) == split]
        return some(found, split, count, start, self.options.app)

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[str, dict[str, object]]:
        task = task_to_play(self, seed, options)
        if task.id not in self._rows:
            raise UserError(f"task {task.id!r} is none of {self.options.app}: take tasks from WebArenaEnv.tasks")
        self._state = b""

        async def begin(page: Any) -> str:
            await page.set_viewport_size({"width": 1280, "height": 900})
            await page.clock.install(time=_NOW - 60)
            await page.clock.pause_at(_NOW)  # from where only run_for moves it
            await page.goto(SITE)
            return await self._look(page)

        self._shown = self.on_page(begin, f"{task.id}, its start", fresh=True)
        self._at = task, False
        return self._shown, dict(self.info)

    def act(self, call: ToolCall) -> str:
        ref = str(call.arguments.get("ref", ""))
        if ref and f"[ref={ref}]" not in self._shown:
            raise CallRefused(f"no element {ref}")
        if call.name == "finish":
            self.visit = True
            return "the task is handed in"
        error, self._shown = self.on_page(partial(self._act, call=call), f"{self.task.id}, {call}")
        if error:
            raise CallRefused(error)
        return self._shown

    def verdict(self) -> float | None:
        return self.verify() if self.visit else None

    def verify(self) -> float:
        """1 if the verifier is content with the state that the page has sent, else 0."""
        if not self._state:
            return 0.0
        file = self._folder / self._rows[self.task.id]["verify"]
        space: dict[str, Any] = {"__name__": "verifier"}
        exec(compile(file.read_bytes(), file, "exec"), space)
        answer = SimpleNamespace(status_code=200, json=lambda: json.loads(self._state), raise_for_status=lambda: None)
        space["requests"] = SimpleNamespace(get=lambda *_, **__: answer)
        try:
            return float(space["verify"](SITE.rstrip("/"))[0])
        except (AttributeError, LookupError, TypeError, ValueError):  # the state lacks what a solved one has
            return 0.0

    async def _serve(self, method: str, address: str, body: bytes) -> tuple[int, bytes]:
        path = urlsplit(address).path
        if path == "/api/state":
            self._state = body if method == "PUT" else self._state
            return 200, self._state
        file = (self._folder / (path.lstrip("/") or "index.html")).resolve()
        served = file.is_relative_to(self._folder) and file.is_file()  # no /api/events: resets are new pages
        return (200, file.read_bytes()) if served else (404, b"")

    async def _look(self, page: Any) -> str:
        """Let the page settle, and read its accessibility tree without elements that are layout alone."""
        await page.mouse.move(0, 0)  # which hides what only a pointer shows
        await page.evaluate(_SETTLE)
        await page.clock.run_for(_SETTLE_MS)
        await page.evaluate(_SETTLE)
        await self.see(page, self.options.screenshots)
        tree = (await page.aria_snapshot(mode="ai")).replace(" [cursor=pointer]", "")
        return "\n".join(line for line in tree.splitlines() if not _LAYOUT.fullmatch(line))

    async def _act(self, page: Any, call: ToolCall) -> tuple[str, str]:
        """Make a call. Returns why this is impossible, or an empty text, and the page."""
        from playwright.async_api import Error

        given, error = {name: str(value) for name, value in call.arguments.items()}, ""
        try:
            if call.name == "press":
                await page.keyboard.press(given["key"])
            else:
                error = await self._use(page, call.name, given)
        except Error as refused:
            error = str(refused).splitlines()[0]
        return error, await self._look(page)

    async def _use(self, page: Any, tool: str, given: Mapping[str, str]) -> str:
        """Use an element. Returns why this is impossible, or an empty text."""
        target = await page.query_selector(f"aria-ref={given['ref']}")
        if target is None or not await target.evaluate(_REACH):
            return f"element {given['ref']} is hidden, covered or disabled"
        if tool == "click":
            await target.click(force=True)
        elif tool == "type":
            await target.fill(given["text"], force=True)
        else:
            labels = await target.evaluate("each => [...each.options ?? []].map(one => one.label)")
            if given["option"] not in labels:
                return f"element {given['ref']} has no option {given['option']}"
            await target.select_option(label=given["option"], force=True)
        return ""


def digest(folder: Path) -> str:
    """A digest of all files of a folder and their names."""
    files = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*") if file.is_file()}
    rows = (f"{sha256(files[name].read_bytes()).hexdigest()} {name}" for name in sorted(files) if ".pyc" not in name)
    return sha256("\n".join(rows).encode()).hexdigest()[:16]


def _checked_folder(options: WebArenaOptions) -> Path:
    """The folder of the app, if it is there and known."""
    apps = options.path / "apps"
    known = sorted(file.parent.name for file in apps.glob(f"*/{options.tasks}-tasks.json"))
    if not known:
        raise UserError(
            f"{options.path} holds no apps: clone github.com/web-arena-x/webarena-infinity and set "
            "environment.options.path to its folder"
        )
    if options.app not in known:
        raise UserError(f"app is {options.app!r}: use one of {', '.join(known)}")
    folder = (apps / options.app).resolve()
    if (found := digest(folder)) != (options.digest or KNOWN.get(options.app)):
        raise UserError(
            f"app {options.app} has the digest {found}, which is not that of commit 1ca7781: read its verifiers, "
            f"which run in this process, and set environment.options.digest={found}"
        )
    return folder
