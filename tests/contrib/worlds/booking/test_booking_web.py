"""The booking site as HTML: the same pages as the text, over HTTP, for many users."""

import asyncio
import random
import re
from collections.abc import Sequence
from html.parser import HTMLParser

import httpx
import pytest

from treeagent.contrib.worlds.booking import BookingEnv, BookingOptions
from treeagent.contrib.worlds.booking.env import page_text
from treeagent.contrib.worlds.booking.site import Action, is_over
from treeagent.contrib.worlds.booking.web import COOKIE, Site


class _Reader(HTMLParser):
    """Collects what a screen reader says of a page: texts and headings, and buttons with a number."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.clicks: list[str] = []
        self._open = ""

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        if tag in ("h1", "p", "button"):
            self._open = tag
            self.lines.append("")
        if tag == "button":
            self.clicks.append(dict(attrs).get("value") or "")
            self.lines[-1] = f"{len(self.clicks)} "

    def handle_data(self, data: str) -> None:
        if self._open:
            self.lines[-1] += data

    def handle_endtag(self, tag: str) -> None:
        if tag == self._open:
            self._open = ""


def read_html(text: str) -> tuple[str, list[Action]]:
    """The text of a page, as ``env.page_text`` writes it, and what each numbered element does."""
    reader = _Reader()
    reader.feed(text)
    lines = "\n".join(" ".join(line.split()) for line in reader.lines)
    parts = (each.partition("/") for each in reader.clicks)
    return lines, [Action(tool, value) for tool, _, value in parts]


def test_html_and_text_are_equal_on_random_walks() -> None:
    env = BookingEnv(BookingOptions(size=6, popups=True, slow=0.3, holds=2, wordings=3))
    kinds = set[str]()
    for seed, task in enumerate(env.tasks("test", 30)):
        rng = random.Random(seed)
        observation, _ = env.reset(options={"task": task})
        site = Site(env.town(), env.rules)
        key = site.begin(env.visit.session)
        while True:
            text, actions = read_html(site.html(key))
            assert text == observation == page_text(env.page())
            assert actions == [each.action for each in env.page().elements]
            assert (site.ledger, site.sessions[key]) == env.visit
            kinds.add(env.page().kind)
            if env.verdict() is not None:
                break
            number = rng.randrange(len(actions))
            observation = env.step(f"click[{number + 1}]")[0]
            site.click(key, actions[number])
    assert kinds == {"home", "results", "place", "bookings", "booking", "form", "review", "cover", "end"}


def test_users_over_http_keep_their_bookings_and_outdated_clicks_change_nothing() -> None:
    env = BookingEnv(BookingOptions(size=3, places=8))
    site = Site(env.town(5), env.rules)

    async def visit(seed: int) -> None:
        rng = random.Random(seed)
        transport = httpx.ASGITransport(app=site.app())
        async with httpx.AsyncClient(transport=transport, base_url="http://test", follow_redirects=True) as user:
            page = await user.get("/")
            for _ in range(40):
                actions = read_html(page.text)[1]
                if not actions:
                    return
                [clock] = re.findall(r'name="clock" value="(\d+)"', page.text)
                action = rng.choice(actions)
                form = {"click": f"{action.tool}/{action.value}", "clock": clock}
                page = await user.post("/", data=form)
                assert page.status_code in (200, 409)
                before = site.ledger, site.sessions[user.cookies[COOKIE]]
                again = await user.post("/", data=form)
                if before[1].clock != int(clock):
                    assert again.status_code == 409 and site.sessions[user.cookies[COOKIE]] == before[1]

    async def all_visits() -> None:
        await asyncio.gather(*map(visit, range(50)))

    asyncio.run(all_visits())
    live = [each.table() for each in site.ledger if each.kind != "cancelled"]
    assert len(set(live)) == len(live)
    sent = [each for each in site.sessions.values() if each.page == "sent" and each.booking < 0]
    assert sent and all(any(each.owner == one.owner for each in site.ledger) for one in sent)
    assert len([each for each in site.ledger if each.owner != "user" and each.kind == "booked"]) == len(sent)
    assert all(is_over(each) or each.clock <= 80 for each in site.sessions.values())


def test_a_long_body_and_an_unknown_click_are_refused() -> None:
    env = BookingEnv()
    site = Site(env.town(5), env.rules)

    async def ask() -> None:
        transport = httpx.ASGITransport(app=site.app())
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as user:
            await user.get("/")
            assert (await user.post("/", content=b"x" * 20_000)).status_code == 413
            assert (await user.post("/", data={"click": "send/", "clock": "0"})).status_code == 409

    asyncio.run(ask())
    [key] = site.sessions
    with pytest.raises(ValueError, match="no send on this page"):
        site.click(key, Action("send"))
