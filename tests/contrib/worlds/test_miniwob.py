"""MiniWoB++ in a real Chromium."""

import os
import random
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from faulty_envs import children, gone

from treeagent.contrib.worlds.miniwob import Element, MiniWoBEnv, MiniWoBOptions
from treeagent.envs import EnvCrashed, check_env

pytest.importorskip("miniwob", reason="the miniwob extra is not installed")
pytest.importorskip("playwright", reason="the browser extra is not installed")
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="processes are counted in /proc"),
    pytest.mark.skipif(not shutil.which("chromium"), reason="no browser: apt-get install chromium"),
    pytest.mark.timeout(900),
]
SANDBOX = os.geteuid() != 0


@pytest.fixture(scope="module")
def browser() -> Iterator[MiniWoBEnv]:
    """One browser for the module, because a browser takes seconds to start."""
    env = MiniWoBEnv(MiniWoBOptions(sandbox=SANDBOX))
    yield env
    env.close()


def opened(browser: MiniWoBEnv, page: str, number: int = 0) -> MiniWoBEnv:
    browser.options = MiniWoBOptions(page=page)
    browser.reset(seed=number)
    return browser


def ref(env: MiniWoBEnv, role: str, name: str = "") -> str:
    return next(str(number) for number, each in enumerate(env.elements, 1) if each.role == role and name in each.name)


def quoted(env: MiniWoBEnv) -> list[str]:
    return re.findall('"([^"]+)"', env.utterance)


def test_pictures_belong_to_the_observations(browser: MiniWoBEnv) -> None:
    env = opened(browser, "click-button-sequence")
    text = [env.reset(seed=0)[0], env.step(f"click[{ref(env, 'button', 'ONE')}]")[0]]
    env.options = MiniWoBOptions(page="click-button-sequence", screenshots=True)
    seen, info = env.reset(seed=0)
    said, _, over, _, later = env.step(f"click[{ref(env, 'button', 'ONE')}]")
    assert [seen, said] == text and not over
    for images in (info["images"], later["images"]):
        assert isinstance(images, list) and images[0].startswith("data:image/png;base64,")
    assert env.step(f"click[{ref(env, 'button', 'TWO')}]")[2:] == (True, False, {})


def test_visible_elements_are_listed_with_what_can_be_done_with_them(browser: MiniWoBEnv) -> None:
    env = opened(browser, "choose-list")
    observation, info = env.reset(seed=3)
    assert observation == (
        "task: Select Kikelia from the list and click Submit.\n"
        '[1] combobox "options" selected ["Giustina"] options ["Giustina","Dena","Kikelia","Avie","Joann"]\n'
        '[2] button "Submit"'
    )
    assert info == {}
    assert env.elements[1] == Element("button", "Submit", "")


def test_a_click_on_what_is_asked_for_is_a_success_and_any_other_is_none(browser: MiniWoBEnv) -> None:
    missed = 0
    for number in range(3):
        env = opened(browser, "click-button", number)
        player = env.demonstrator(0.0)
        thought, call = player.act(random.Random(0))
        assert thought == quoted(env)[0]
        assert env.step(call) == ("the page has ended the task", 1.0, True, False, {})
        assert env.verify() == 1.0
        over = env.step(call)
        assert over == ("the episode is over", 0.0, True, False, {"tool_error": "the episode is over"})
        env.reset(seed=number)
        for wrong, each in enumerate(env.elements, 1):
            if each.role == "button" and each.name not in quoted(env):
                assert env.step(f"click[{wrong}]")[1:4] == (0.0, True, False)
                assert env.verify() == 0.0
                missed += 1
                break
    assert missed


def test_a_call_that_cannot_be_made_is_an_observation(browser: MiniWoBEnv) -> None:
    env = opened(browser, "login-user")
    box, button = ref(env, "textbox"), ref(env, "button")
    for call, words in (
        ("click[0]", "no element 0, use 1 to 5"),
        (f'select {{"ref": "{box}", "option": "none"}}', "has no option none"),
        (f'scroll {{"ref": "{button}", "direction": "down"}}', "does not scroll"),
        (f'type {{"ref": "{box}"}}', "type needs text"),
    ):
        observation, reward, terminated, truncated, info = env.step(call)
        assert words in observation
        assert (reward, terminated, truncated, info) == (0.0, False, False, {"tool_error": observation})
    assert env.step(f"click[{box}]")[4] == {}


def test_branches_equal_replays(browser: MiniWoBEnv) -> None:
    env = opened(browser, "click-tab-2")
    report = check_env(env, env.tasks("train", 1)[0], branches=4, depth=3)
    assert report.passed, report.violations
    assert report.branches == report.equal_branches > 0


@pytest.mark.parametrize("victim", ["browser", "driver"])
def test_a_browser_or_driver_that_dies_costs_the_episode_and_the_next_goes_on(browser: MiniWoBEnv, victim: str) -> None:
    opened(browser, "click-button")
    [driver] = [each for each in children() if b"playwright" in Path(f"/proc/{each}/cmdline").read_bytes()]
    [chromium] = children(driver)
    os.kill(chromium if victim == "browser" else driver, signal.SIGKILL)
    with pytest.raises(EnvCrashed, match="page click-button, ToolCall"):
        browser.step("click[1]")
    assert gone(chromium)
    with pytest.raises(ValueError, match="no episode has begun"):
        browser.step("click[1]")
    assert browser.reset(seed=0)[0].startswith("task: Click on")
    assert gone(driver)
