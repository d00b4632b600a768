"""The site in a browser: pages of ``web.Site``, read from the accessibility tree, used by mouse and keyboard."""

from typing import Any

from treeagent.contrib.worlds import required
from treeagent.contrib.worlds.booking.site import Rules, Session, start
from treeagent.contrib.worlds.booking.town import Ledger, Town
from treeagent.contrib.worlds.booking.web import COOKIE, Site
from treeagent.contrib.worlds.browser import SITE, Tab, screenshot
from treeagent.envs.worker import EnvCrashed

State = tuple[Town, Ledger, Session]
_USED = {"button": "", "link": "", "combobox": "select ", "textbox": "type "}
"""Roles of the elements that can be used, and what stands before their names."""


class Screen:
    """One user's browser. Nothing lives in the page only: it has one address and a field is sent once it is filled, so
    that the site's state is all that a branch needs, and a page that shows another state is loaded again."""

    def __init__(self, town: Town, rules: Rules, sandbox: bool, screenshots: bool) -> None:
        httpx = required("httpx", "browser")
        self._site = site = Site(town, rules)
        self._key = site.begin(start(rules))
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=site.app()), headers={"cookie": f"{COOKIE}={self._key}"}
        )
        self._tab = Tab(sandbox=sandbox, serve=self._serve)
        self._screenshots = screenshots
        self.images = list[str]()
        """A screenshot of what the page shows, if it is wanted."""
        self._page: Any = None
        self._session: Any = None
        self._shown: tuple[State, str, list[int]] | None = None
        """What the page shows: a state, its text, and the nodes of its numbered elements."""

    def show(self, state: State) -> str:
        """The text of the page in a state."""
        return self._play(state, 0)[1]

    def use(self, state: State, number: int, field: str, text: str) -> tuple[State, str]:
        """In a state, click the element of this number, from 1, or select or type a text in it if it is a field.
        Returns the next state and its page's text."""
        return self._play(state, number, field, text)

    def close(self) -> None:
        self._tab.close()

    def _play(self, state: State, number: int, field: str = "", text: str = "") -> tuple[State, str]:
        async def play(page: Any) -> tuple[State, str]:
            if page is not self._page:
                self._page, self._session, self._shown = page, await page.context.new_cdp_session(page), None
            if self._shown is None or self._shown[0] != state:
                self._site.town, self._site.ledger, self._site.sessions[self._key] = state
                await page.goto(SITE)
                self._shown = await self._read()
            if number:
                async with page.expect_navigation(wait_until="domcontentloaded"):
                    if field == "select":  # its list opens in no page that a mouse could reach
                        await page.get_by_role("combobox").select_option(label=text)
                    else:
                        await self._press(self._shown[2][number - 1])
                    if field == "type":
                        await page.keyboard.type(text)
                        await page.keyboard.press("Enter")
                self._shown = await self._read()
            return self._shown[:2]

        try:
            return self._tab.run(play, f"click {number}")
        except EnvCrashed:  # another tab may have ended the browser: once more, in a new one
            return self._tab.run(play, f"click {number}")

    async def _serve(self, method: str, address: str, body: bytes) -> tuple[int, bytes]:
        answer = await self._client.request(method, address, content=body, follow_redirects=True)
        return answer.status_code, answer.content

    async def _read(self) -> tuple[State, str, list[int]]:
        """Read the accessibility tree as ``env.page_text`` writes it."""
        nodes = (await self._session.send("Accessibility.getFullAXTree"))["nodes"]
        known = {each["nodeId"]: each for each in nodes}
        lines, elements = list[str](), list[int]()

        def visit(node: Any) -> None:
            role = "" if node["ignored"] else node["role"]["value"]
            if role in _USED:
                elements.append(node["backendDOMNodeId"])
                lines.append(f"{len(elements)} {_USED[role]}{node['name']['value']}")
            elif role in ("heading", "StaticText"):
                lines.append(node["name"]["value"])
            else:
                for child in node.get("childIds", ()):
                    visit(known[child])

        visit(nodes[0])
        self.images = [await screenshot(self._page)] if self._screenshots else []
        site = self._site
        return (site.town, site.ledger, site.sessions[self._key]), "\n".join(lines), elements

    async def _press(self, node: int) -> None:
        """Click the middle of a node with the mouse."""
        place = {"backendNodeId": node}
        await self._session.send("DOM.scrollIntoViewIfNeeded", place)
        left, top, *_, right, bottom, _, _ = (await self._session.send("DOM.getContentQuads", place))["quads"][0]
        await self._page.mouse.click((left + right) / 2, (top + bottom) / 2)
