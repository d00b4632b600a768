"""The review page in a real browser: two pairs and an episode are reviewed by keyboard, and pairs follow the marks."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command import treeagent
from review_sample import sample_run

from treeagent.contrib.people.marks import FILE, read_marks
from treeagent.pipeline.folder import Run
from treeagent.pipeline.trees import read_trees
from treeagent.views.pairs import PairConfig, preference_pairs

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: it comes with miniwob")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("chromium") and shutil.which("chromedriver")),
        reason="no browser: apt-get install chromium chromium-driver",
    ),
]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return sample_run(tmp_path / "run")


@pytest.fixture
def served(run: Run) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Runs treeagent review as a process. Yields it with the address that it prints."""
    process = subprocess.Popen(
        [sys.executable, "-m", "treeagent", "review", "serve", run.path, "--who", "ada"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    yield process, process.stdout.readline().split()[-1]
    process.kill()
    process.communicate()


@pytest.fixture
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1200,900"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    yield driver
    driver.quit()


def until(condition: Callable[[], object], seconds: float = 30) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "the page did not come to it"
        time.sleep(0.05)


def text(browser: Any, place: str) -> str:
    return " ".join(each.text for each in browser.find_elements("css selector", place))


def press(browser: Any, keys: str, run: Run, place: str = "body") -> None:
    """Press keys that store a mark, and wait until the page shows the next item."""
    count = len(read_marks(run.path / FILE))
    browser.find_element("css selector", place).send_keys(keys)
    until(lambda: len(read_marks(run.path / FILE)) > count and "stored" in text(browser, "#status"))
    time.sleep(0.3)


@pytest.mark.timeout(300)
def test_pairs_follow_what_was_reviewed_by_keys(
    run: Run, served: tuple[subprocess.Popen[str], str], browser: Any, tmp_path: Path
) -> None:
    process, address = served
    browser.get(address)
    until(lambda: "win" in text(browser, ".sides"))
    if folder := os.environ.get("SCREENSHOTS"):
        browser.save_screenshot(f"{folder}/review-desktop.png")
        browser.set_window_size(400, 800)
        browser.save_screenshot(f"{folder}/review-phone.png")
        browser.set_window_size(1200, 900)
    sides = [text(browser, f".side:nth-child({place})") for place in (1, 2)]
    worse = next(place for place in (0, 1) if "lose" in sides[place])
    browser.find_element("css selector", "#note").send_keys("it pays <later>")
    browser.execute_script("document.activeElement.blur()")
    press(browser, "12"[worse], run)  # the reviewer disagrees with the search
    press(browser, "t", run)
    until(lambda: "Step 2" in text(browser, ".steps"))
    press(browser, "1", run)
    assert browser.title != "owned" and "<script>" in text(browser, ".talk")
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []

    process.send_signal(signal.SIGKILL)
    process.wait()
    browser.find_element("css selector", "body").send_keys("s")
    until(lambda: "not stored" in text(browser, "#status"))
    stored = read_marks(run.path / FILE)
    assert [mark.verdict for mark in stored] == ["better", "tie", "solved"]
    assert (stored[0].who, stored[0].note) == ("ada", "it pays <later>")

    assert treeagent("review", "apply", run.path, "--out", tmp_path / "marked").returncode == 0
    pairs = [
        pair for tree in read_trees(tmp_path / "marked" / "trees") for pair in preference_pairs(tree, PairConfig())
    ]
    assert any("lose" in pair.chosen.text and "win" in pair.rejected.text for pair in pairs)
