"""The viewer in a real headless Chromium: load, expand, search, compare, replay, hostile text."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command import treeagent
from viewer_sample import BREAKS, hostile_tree, write_run

pytestmark = pytest.mark.slow
playwright = pytest.importorskip("playwright.sync_api")
BROWSER = shutil.which("chromium")
if BROWSER is None:
    pytest.skip("wants a browser: apt-get install chromium", allow_module_level=True)

Open = Callable[..., "Page"]


class Page:
    """A page of the viewer in a browser."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.on("console", lambda said: self.complaints.append(said.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def js(self, script: str, *arguments: Any) -> Any:
        """Evaluate a JavaScript expression of ``arguments``."""
        return self.page.evaluate(f"(arguments) => ({script})", list(arguments))

    def until(self, script: str, *arguments: Any, seconds: float = 20.0) -> Any:
        """Wait until a JavaScript expression is truthy. Returns its value."""
        end = time.monotonic() + seconds
        while not (found := self.js(script, *arguments)):
            assert time.monotonic() < end, f"never true: {script}; the page reads {self.text('body')[:500]}"
            time.sleep(0.02)
        return found

    def text(self, selector: str) -> str:
        return str(self.js("document.querySelector(arguments[0])?.innerText ?? ''", selector))

    def count(self, selector: str) -> int:
        return int(self.js("document.querySelectorAll(arguments[0]).length", selector))

    def click(self, selector: str, words: str = "") -> None:
        named = "[...document.querySelectorAll(arguments[0])].find((each) => each.textContent.includes(arguments[1]))"
        self.until(named, selector, words)
        self.js(f"{named}.click()", selector, words)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def write(self, words: str) -> None:
        self.page.fill("#search", words)

    def go(self, address: str) -> None:
        self.js("location.hash = arguments[0]", address)


@pytest.fixture
def opened() -> Iterator[Open]:
    """A function that opens a page's file in a browser. When the test ends, the console must be empty."""
    pages: list[Page] = []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, chromium_sandbox=os.geteuid() != 0)

        def open_(file: Path) -> Page:
            page = Page(browser.new_page(viewport={"width": 1440, "height": 900}))
            pages.append(page)
            page.page.goto(file.as_uri())
            page.until("document.querySelector('header') !== null")
            return page

        yield open_
        browser.close()
    said = [page.complaints for page in pages]
    assert not any(said), said


@pytest.fixture
def viewed(finished_run: Path, tmp_path: Path) -> Path:
    page = tmp_path / "view.html"
    assert treeagent("view", finished_run, "--out", page).returncode == 0
    return page


def test_load_expand_search_compare_and_replay(viewed: Path, opened: Open) -> None:
    page = opened(viewed)
    total = page.until("document.querySelectorAll('.entry').length")
    assert total > 10 and page.count("[role=listitem]") == total
    page.click(".groups button", "collect")
    page.until("[...document.querySelectorAll('.note')].some((each) => /^16 of \\d+$/.test(each.innerText))")
    page.write("train-3")
    page.until("document.querySelectorAll('.entry').length === 1")
    page.click(".entry")
    page.until("document.querySelector('[role=tree] [role=treeitem]')")
    assert page.js("decodeURIComponent(location.hash)") == "#tree.collect.0.3/0"
    page.press("x")  # expand everything
    everything = page.count("[role=treeitem]")
    page.go("#tree.collect.0.3/1")
    page.until("document.querySelector('#row-1.selected')")
    # Detail: figures, tokens and the observation belong to the selected step.
    assert {"N", "Q", "P", "V", "r"} <= set(page.text(".detail .figures").split())
    assert page.count(".tokens span") > 1 and page.count(".tokens [class^=lp]") == page.count(".tokens span")
    page.press("c")  # compare
    page.until("document.querySelector('.difference')")
    # Search within the tree.
    page.press("d")
    page.write("search[")
    page.until("/^\\d+ found/.test(document.querySelector('.bar [role=status]')?.innerText ?? '')")
    found = int(page.text(".bar [role=status]").split()[0])
    assert 0 < found <= everything and page.count(".row.hit") > 0
    page.js("document.activeElement.blur()")
    page.press("Escape")  # escape: end the search
    page.until("document.querySelectorAll('.row.hit').length === 0")
    # Replay the eight simulations in their order.
    page.press("r")
    page.until("document.querySelector('.replay')")
    page.click(".replay button[aria-label=Play]")
    page.until("document.querySelector('.told').innerText.startsWith('8 / 8')")
    page.press("i")
    page.until("document.querySelector('.icicle')")
    page.press("Escape", "Escape")  # close the replay, then the tree
    page.until("document.querySelector('.home')")


def test_hostile_text_is_shown_and_runs_nothing(tmp_path: Path, opened: Open) -> None:
    run = write_run(tmp_path / "run", [hostile_tree()])
    assert treeagent("view", run).returncode == 0
    page = opened(run / "view.html")
    page.until("document.querySelector('.entry')")
    assert BREAKS in page.text(".entry .task")
    page.click(".entry")
    page.until("document.querySelector('.detail pre')")
    assert BREAKS in page.text(".detail pre") and "\\x1b[31m\\x00\\x07 \\u202egnirts" in page.text(".detail pre")
    for step, words in ((1, BREAKS), (2, "Show all"), (3, "javascript:")):
        page.go(f"#tree.collect.0.0/{step}")
        page.until("document.querySelector(`#row-${arguments[0]}.selected`)", step)
        assert words in page.text(".detail")
        page.press("c")
        page.until("document.querySelector('.difference')")
        page.press("d", "r", ".", "i")
        page.until("document.querySelector('.icicle')")
        page.press("i", "r")
    page.go("#tree.collect.0.0/2")
    page.click(".detail button", "Show all")
    page.until("[...document.querySelectorAll('.detail pre')].some((each) => each.textContent.length > 1_000_000)")
    assert page.js("window.ran") is None
    # Only the page's own elements exist, and every piece of foreign text is isolated in its writing direction.
    assert page.count("img, svg, iframe, object, embed") == 0 and page.count("script:not([type])") == 1
    assert page.js("getComputedStyle(document.querySelector('.foreign')).unicodeBidi") == "isolate"
