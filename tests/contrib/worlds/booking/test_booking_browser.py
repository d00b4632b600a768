"""The booking site in a real Chromium."""

import os
import pickle
import random
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from faulty_envs import children, gone

from treeagent.contrib.worlds.booking import BookingEnv, BookingOptions
from treeagent.envs import EnvCrashed
from treeagent.types import UserError

pytest.importorskip("playwright", reason="the browser extra is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are counted in /proc"),
    pytest.mark.skipif(not shutil.which("chromium"), reason="no browser: apt-get install chromium"),
]
OPTIONS = BookingOptions(size=5, view="browser", sandbox=os.geteuid() != 0)


def browsers() -> list[int]:
    """The browsers that this process drives."""
    drivers = [each for each in children() if b"playwright" in Path(f"/proc/{each}/cmdline").read_bytes()]
    return [browser for driver in drivers for browser in children(driver)]


@pytest.mark.parametrize("fields", [False, True])
def test_browser_and_text_are_equal_on_random_walks_and_branches_equal_replays(fields: bool) -> None:
    options = replace(OPTIONS, popups=True, slow=0.3, holds=2, wordings=3, fields=fields, screenshots=fields)
    text = BookingEnv(replace(options, view="text", screenshots=False))
    browser, other = BookingEnv(options), BookingEnv(options)
    for seed, task in enumerate(text.tasks("test", 3)):
        rng = random.Random(seed)
        assert browser.reset(options={"task": task})[0] == text.reset(options={"task": task})[0]
        steps = []
        while text.verdict() is None:
            call, before = rng.choice(text.legal_actions()), browser.snapshot()
            steps.append((before, call, browser.step(call)))
            *shown, info = steps[-1][-1]
            assert (*shown, {}) == text.step(call) and browser.visit == text.visit and bool(info) == fields
        for before, call, result in rng.sample(steps, 3):
            for env in (browser, other):
                env.restore(pickle.loads(pickle.dumps(before)))
                assert env.step(call) == result
    browser.close()
    other.close()
    assert not browsers()


def test_a_browser_that_is_killed_costs_the_step_that_kills_it_alone() -> None:
    env, other = BookingEnv(OPTIONS), BookingEnv(OPTIONS)
    env.reset(seed=0)
    other.reset(seed=1)
    state = env.snapshot()
    [first] = browsers()
    os.kill(first, signal.SIGKILL)
    assert not env.step("click[1]")[4] and not other.step("click[1]")[4] and gone(first)
    assert env._screen is not None
    tab, serve = env._screen._tab, env._screen._tab._serve

    async def kill(method: str, address: str, body: bytes) -> tuple[int, bytes]:
        os.kill(browsers()[0], signal.SIGKILL)
        return 200, b""

    tab._serve = kill
    with pytest.raises(EnvCrashed, match=r"click 1"):
        env.step("click[1]")
    assert not other.step("click[1]")[4]
    tab._serve = serve
    env.restore(state)
    assert not env.step("click[1]")[4]
    env.close()
    other.close()


def test_a_missing_browser_and_a_sandbox_for_root_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(UserError, match="sandbox=false"):
        BookingEnv(replace(OPTIONS, sandbox=True))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="apt-get install chromium"):
        BookingEnv(OPTIONS)
