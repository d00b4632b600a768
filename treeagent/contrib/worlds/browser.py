"""Chromium, driven by Playwright: one headless browser a process, one context an environment."""

import asyncio
import base64
import contextlib
import mimetypes
import os
import shutil
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from threading import Lock, Thread
from typing import Any, TypeVar
from urllib.parse import urlsplit

from treeagent.contrib.worlds import required
from treeagent.envs.base import SnapshotKind, StepResult, ToolSpec
from treeagent.envs.visit import ToolEnv, Visit
from treeagent.envs.worker import EnvCrashed
from treeagent.types import ToolCall, UserError

SITE = "http://site.test/"
"""Where a site is found that this process answers."""
_FLAGS = (
    "--allow-file-access-from-files",  # some of MiniWoB++'s pages contain others in a frame
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)
_START_SECONDS, _SECONDS, _CLOSE_SECONDS = 120.0, 60.0, 5.0
"""Time limits for opening a page, with the start of the browser, for a job on it, and for closing it."""

Answer = TypeVar("Answer")
Serve = Callable[[str, str, bytes], Awaitable[tuple[int, bytes]]]
"""Answers a request (method, address, body) by a status and a body, whose type follows from the address."""


async def screenshot(page: Any) -> str:
    """What the window shows while the mouse points at nothing, as the data URL of a PNG."""
    await page.mouse.move(0, 0)
    return f"data:image/png;base64,{base64.b64encode(await page.screenshot(animations='disabled')).decode()}"


class Tab:
    """A page in a context of its own. ``script`` runs before the scripts of each page. The addresses below ``SITE`` are
    answered by ``serve``; no other host can be reached. Any thread may use it, one at a time."""

    def __init__(self, *, sandbox: bool, script: str = "", serve: Serve | None = None) -> None:
        required("playwright", "browser")
        if not shutil.which("chromium"):
            raise UserError("chromium is not installed: apt-get install chromium")
        if sandbox and os.geteuid() == 0:
            raise UserError(
                "Chromium refuses to run its sandbox as root: use another user or, for pages that you trust, set "
                "environment.options.sandbox=false"
            )
        self._sandbox, self._script, self._serve = sandbox, script, serve
        self._browser: _Browser | None = None
        self._page: Any = None

    def run(self, work: Callable[[Any], Coroutine[Any, Any, Answer]], what: str, *, fresh: bool = False) -> Answer:
        """Run ``work`` on the Playwright page, on a new one if there is none or it is to be ``fresh``.

        Raises:
            EnvCrashed: the browser, the page or the time limit has ended ``what``. The page is gone.
        """
        from playwright.async_api import Error

        if self._browser is None:
            self._browser = _Browser.shared(self._sandbox)
        try:
            return self._browser.call(self._run(work, fresh))
        except (Error, TimeoutError) as error:
            first = next(iter(str(error).splitlines()), "")
            raise EnvCrashed(f"{what}: {type(error).__name__}: {first}") from error

    def close(self) -> None:
        """Close the context; the last one closes the browser."""
        browser, self._browser = self._browser, None
        if browser is not None:
            browser.call(self._drop())
            browser.release()

    async def _run(self, work: Callable[[Any], Coroutine[Any, Any, Answer]], fresh: bool) -> Answer:
        try:
            if fresh:
                await self._drop()
            if self._page is None:
                async with asyncio.timeout(_START_SECONDS):
                    await self._open()
            async with asyncio.timeout(_SECONDS):
                return await work(self._page)
        except BaseException:
            await self._drop()
            raise

    async def _open(self) -> None:
        assert self._browser is not None
        context = await self._browser.context()
        self._page = page = await context.new_page()
        page.set_default_timeout(_SECONDS * 1000)
        page.on("dialog", lambda dialog: dialog.accept())
        if self._script:
            await page.add_init_script(self._script)
        if self._serve is not None:
            await page.route("**/*", self._answer)

    async def _answer(self, route: Any) -> None:
        request = route.request
        if self._serve is None or not request.url.startswith(SITE):
            await route.abort()
            return
        status, body = await self._serve(request.method, request.url, request.post_data_buffer or b"")
        kind = mimetypes.guess_type(urlsplit(request.url).path)[0] or "text/html"
        await route.fulfill(status=status, body=body, content_type=f"{kind}; charset=utf-8")

    async def _drop(self) -> None:
        page, self._page = self._page, None
        if page is not None and not page.is_closed():
            await _closed(page.context.close())


class PageEnv(ToolEnv[None, Visit]):
    """An environment of a page in a ``Tab``. Search returns to an earlier state by a reset and the same calls."""

    snapshot_kind: SnapshotKind = "replay"
    specs: Sequence[ToolSpec]
    """The tools."""
    tab: Tab
    info: Mapping[str, object]
    """What belongs to the page that was seen last, such as its picture."""

    async def see(self, page: Any, screenshots: bool) -> None:
        """Take a picture of the page, if ``screenshots`` are asked for."""
        self.info = {"images": [await screenshot(page)]} if screenshots else {}

    def step(self, action: str | ToolCall) -> StepResult:
        said, reward, terminated, truncated, info = super().step(action)
        return said, reward, terminated, truncated, info or ({} if terminated else dict(self.info))

    def tools(self) -> Sequence[ToolSpec]:
        return self.specs

    def on_page(self, work: Callable[[Any], Coroutine[Any, Any, Answer]], what: str, *, fresh: bool = False) -> Answer:
        """Run ``work`` on the page, as ``Tab.run``. If the browser fails, the episode is over."""
        at, self._at = self._at, None
        answer = self.tab.run(work, what, fresh=fresh)
        self._at = at
        return answer

    def close(self) -> None:
        self.tab.close()


class _Browser:
    """The browser of this process, in the thread of its event loop."""

    _running: dict[bool, "_Browser"] = {}  # noqa: RUF012 - shared on purpose
    _lock = Lock()

    def __init__(self, sandbox: bool) -> None:
        self._sandbox, self._tabs = sandbox, 0
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="browser", daemon=True)
        self._thread.start()
        self._starting = asyncio.Lock()
        self._driver: Any = None
        self._chromium: Any = None

    @classmethod
    def shared(cls, sandbox: bool) -> "_Browser":
        """The browser for one more tab."""
        with cls._lock:
            browser = cls._running.get(sandbox) or cls(sandbox)
            cls._running[sandbox] = browser
            browser._tabs += 1
            return browser

    def release(self) -> None:
        """A tab needs the browser no longer."""
        with self._lock:
            self._tabs -= 1
            if self._tabs:
                return
            del self._running[self._sandbox]
        self.call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def call(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def context(self) -> Any:
        """A new context, of a new browser if there is none or it has ended."""
        from playwright.async_api import Error, async_playwright

        options = {"viewport": {"width": 800, "height": 800}, "timezone_id": "UTC", "reduced_motion": "reduce"}
        async with self._starting:
            if self._chromium is not None:
                with contextlib.suppress(Error):
                    return await self._chromium.new_context(**options)
            await self._end()
            self._driver = await async_playwright().start()
            self._chromium = await self._driver.chromium.launch(
                executable_path=shutil.which("chromium"),
                chromium_sandbox=self._sandbox,
                args=_FLAGS,
                timeout=_START_SECONDS * 1000,
            )
            return await self._chromium.new_context(**options)

    async def _end(self) -> None:
        """End the driver, and with it the browser."""
        driver, self._chromium, self._driver = self._driver, None, None
        if driver is not None:
            await _closed(driver.stop())


async def _closed(closing: Awaitable[None]) -> None:
    """Close something that may have ended already."""
    with contextlib.suppress(Exception):
        await asyncio.wait_for(closing, _CLOSE_SECONDS)
