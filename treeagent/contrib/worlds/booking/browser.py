"""The site in a browser: pages of ``web.Site``, read from the accessibility tree and clicked by mouse."""

from typing import Any

from treeagent.contrib.worlds import required
from treeagent.contrib.worlds.booking.site import Rules, Session, start
from treeagent.contrib.worlds.booking.town import Ledger, Town
from treeagent.contrib.worlds.booking.web import COOKIE, Site
from treeagent.contrib.worlds.browser import SITE, Tab
from treeagent.envs.worker import EnvCrashed

State = tuple[Town, Ledger, Session]


class Screen:
    """One user's browser. Nothing lives in the page only: it has one address and no fields to fill in, so that the
    site's state is all that a branch needs, and a page that shows another state is loaded again."""

    def __init__(self, town: Town, rules: Rules, sandbox: bool) -> None:
        httpx = required("httpx", "browser")
        self._site = site = Site(town, rules)
        self._key = site.begin(start(rules))
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=site.app()), headers={"cookie": f"{COOKIE}={self._key}"}
        )
        self._tab = Tab(sandbox=sandbox, serve=self._serve)
        self._shown: State | None = None

    def show(self, state: State) -> str:
        """The text of the page in a state."""
        return self._played(state, 0)[1]

    def click(self, state: State, number: int) -> tuple[State, str]:
        """Click the element of this number, from 1, in a state. Returns the next state and its page's text."""
        return self._played(state, number)

    def close(self) -> None:
        self._tab.close()

    def _played(self, state: State, number: int) -> tuple[State, str]:
        async def play(page: Any) -> tuple[State, str]:
            site = self._site
            if self._shown != state:
                site.town, site.ledger, site.sessions[self._key] = state
                await page.goto(SITE)
            self._shown = None
            session = await page.context.new_cdp_session(page)
            if number:
                _, elements = await _read(session)
                async with page.expect_navigation(wait_until="domcontentloaded"):
                    await _press(page, session, elements[number - 1])
            text, _ = await _read(session)
            await session.detach()
            self._shown = site.town, site.ledger, site.sessions[self._key]
            return self._shown, text

        try:
            return self._tab.run(play, f"page {number}")
        except EnvCrashed:  # another tab may have ended the browser: once more, in a new one
            self._shown = None
            return self._tab.run(play, f"click {number}")

    async def _serve(self, method: str, address: str, body: bytes) -> tuple[int, bytes]:
        answer = await self._client.request(method, address, content=body, follow_redirects=True)
        return answer.status_code, answer.content


async def _read(session: Any) -> tuple[str, list[int]]:
    """The accessibility tree of a page as ``env.page_text`` writes it, and the nodes of its numbered elements."""
    nodes = (await session.send("Accessibility.getFullAXTree"))["nodes"]
    known = {each["nodeId"]: each for each in nodes}
    lines, elements = list[str](), list[int]()

    def visit(node: Any) -> None:
        role = "" if node["ignored"] else node["role"]["value"]
        if role in ("button", "link"):
            elements.append(node["backendDOMNodeId"])
            lines.append(f"{len(elements)} {node['name']['value']}")
        elif role in ("heading", "StaticText"):
            lines.append(node["name"]["value"])
        else:
            for child in node.get("childIds", ()):
                visit(known[child])

    visit(nodes[0])
    return "\n".join(lines), elements


async def _press(page: Any, session: Any, node: int) -> None:
    """Click the middle of a node with the mouse."""
    await session.send("DOM.scrollIntoViewIfNeeded", {"backendNodeId": node})
    left, top, *_, right, bottom, _, _ = (await session.send("DOM.getContentQuads", {"backendNodeId": node}))["quads"][
        0
    ]
    await page.mouse.click((left + right) / 2, (top + bottom) / 2)
