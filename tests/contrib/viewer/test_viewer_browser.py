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
selenium = pytest.importorskip("selenium")
BROWSER, DRIVER = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
if BROWSER is None or DRIVER is None:
    pytest.skip("wants a browser: apt-get install chromium chromium-driver", allow_module_level=True)

Open = Callable[..., "Page"]


class Page:
    """A page of the viewer in a browser."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def js(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def until(self, script: str, *arguments: Any, seconds: float = 20.0) -> Any:
        """Wait until a JavaScript expression is truthy. Returns its value."""
        end = time.monotonic() + seconds
        while not (found := self.js(f"return {script}", *arguments)):
            assert time.monotonic() < end, f"never true: {script}; the page reads {self.text('body')[:500]}"
            time.sleep(0.02)
        return found

    def text(self, selector: str) -> str:
        return str(self.js("return document.querySelector(arguments[0])?.innerText ?? ''", selector))

    def count(self, selector: str) -> int:
        return int(self.js("return document.querySelectorAll(arguments[0]).length", selector))

    def click(self, selector: str, words: str = "") -> None:
        named = "[...document.querySelectorAll(arguments[0])].find((each) => each.textContent.includes(arguments[1]))"
        self.until(named, selector, words)
        self.js(f"{named}.click()", selector, words)

    def press(self, *keys: str, on: str = "") -> None:
        from selenium.webdriver import ActionChains

        if on:
            self.js("document.querySelector(arguments[0]).focus()", on)
        ActionChains(self.driver).send_keys(*keys).perform()

    def write(self, words: str) -> None:
        field = self.driver.find_element("css selector", "#search")
        field.clear()
        field.send_keys(words)

    def go(self, address: str) -> None:
        self.js("location.hash = arguments[0]", address)

    def step(self) -> int:
        return int(str(self.js("return location.hash.split('/')[1] ?? '0'")))

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]


@pytest.fixture
def opened() -> Iterator[Open]:
    """A function that opens a page's file in a browser of a given size. When the test ends, the console must be
    empty."""
    from selenium import webdriver

    pages: list[Page] = []

    def open_(file: Path) -> Page:
        options = webdriver.ChromeOptions()
        options.binary_location = str(BROWSER)
        flags = ["--headless=new", "--window-size=1440,900", "--disable-dev-shm-usage"]
        for flag in flags + ["--no-sandbox"] * (os.geteuid() == 0):  # as root, Chromium's own sandbox is not available
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        service = webdriver.ChromeService(executable_path=str(DRIVER))
        page = Page(webdriver.Chrome(options=options, service=service))
        pages.append(page)
        page.driver.get(file.as_uri())
        page.until("document.querySelector('header') !== null")
        return page

    yield open_
    said = [page.complaints() for page in pages]
    for page in pages:
        page.driver.quit()
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
    assert page.js("return decodeURIComponent(location.hash)") == "#tree.collect.0.3/0"
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
    page.press("\ue00c")  # escape: end the search
    page.until("document.querySelectorAll('.row.hit').length === 0")
    # Replay the eight simulations in their order.
    page.press("r")
    page.until("document.querySelector('.replay')")
    page.click(".replay button[aria-label=Play]")
    page.until("document.querySelector('.told').innerText.startsWith('8 / 8')")
    page.press("i")
    page.until("document.querySelector('.icicle')")
    page.press("\ue00c", "\ue00c")  # close the replay, then the tree
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
    assert page.js("return window.ran") is None
    # Only the page's own elements exist, and every piece of foreign text is isolated in its writing direction.
    assert page.count("img, svg, iframe, object, embed") == 0 and page.count("script:not([type])") == 1
    assert page.js("return getComputedStyle(document.querySelector('.foreign')).unicodeBidi") == "isolate"
