"""The site as HTML pages over HTTP, for many users at once, and the text that a browser's page stands for."""

import secrets
from typing import Any
from urllib.parse import parse_qs

from treeagent.contrib.worlds import required
from treeagent.contrib.worlds.booking.site import Action, Page, Rules, Session, start, step, view
from treeagent.contrib.worlds.booking.town import Ledger, Town, draw_town

_OWN_TEMPLATES = ("home", "results", "form", "cover")
_MOST_BYTES = 10_000
"""Largest body of a request that is read."""
COOKIE = "visit"


class Site:
    """The state of a site with many users, and its pages. An ASGI application is ``Site(...).app()``."""

    def __init__(self, town: Town, rules: Rules) -> None:
        self.town, self.rules = town, rules
        self.ledger: Ledger = town.booked
        self.sessions: dict[str, Session] = {}
        jinja2 = required("jinja2", "mcp")
        loader = jinja2.PackageLoader("treeagent.contrib.worlds.booking")
        self._templates = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True)

    def begin(self, session: Session | None = None) -> str:
        """Begin a visit, by default that of a new user. Returns the value of its cookie."""
        key = secrets.token_urlsafe(16)
        self.sessions[key] = session or start(self.rules, owner=key)
        return key

    def page(self, key: str) -> Page:
        """The page that the user of a cookie sees."""
        return view(self.town, self.rules, self.ledger, self.sessions[key])

    def click(self, key: str, action: Action) -> None:
        """Take a click, one at a time: the ledger is changed in one assignment.

        Raises:
            ValueError: the page, as it is now, has no such element.
        """
        ledger, session = step(self.town, self.rules, self.ledger, self.sessions[key], action)
        self.ledger, self.sessions[key] = ledger, session

    def html(self, key: str) -> str:
        """The page of a user as HTML."""
        page = self.page(key)
        name = page.kind if page.kind in _OWN_TEMPLATES else "base"
        written: str = self._templates.get_template(f"{name}.html").render(page=page, clock=self.sessions[key].clock)
        return written

    def app(self) -> Any:
        """The ASGI application: GET / shows the page, POST / takes a click. A click on an outdated page, whose table
        may be gone or which was sent twice, changes nothing and shows the page as it is now."""
        required("starlette", "mcp")
        from starlette.applications import Starlette
        from starlette.requests import Request
        from starlette.responses import HTMLResponse, RedirectResponse, Response
        from starlette.routing import Route

        def shown(key: str, status: int = 200) -> Response:
            response = HTMLResponse(self.html(key), status, headers={"Cache-Control": "no-store"})
            response.set_cookie(COOKIE, key, httponly=True, samesite="strict")
            return response

        async def answer(request: Request) -> Response:
            key = request.cookies.get(COOKIE, "")
            if key not in self.sessions:
                return shown(self.begin())
            if request.method != "POST":
                return shown(key)
            body = bytearray()
            async for chunk in request.stream():
                body += chunk
                if len(body) > _MOST_BYTES:
                    return Response("too long", 413)
            form = parse_qs(body.decode(errors="replace"), keep_blank_values=True)
            tool, _, value = form.get("click", [""])[0].partition("/")
            filled = self.page(key).filled(form.get("typed", [""])[0])
            if form.get("clock") != [str(self.sessions[key].clock)]:
                return shown(key, 409)
            try:
                self.click(key, filled.action if filled else Action(tool, value))
            except ValueError:
                return shown(key, 409)
            return RedirectResponse("/", 303)

        return Starlette(routes=[Route("/", answer, methods=["GET", "POST"])])


def demo() -> Any:
    """An ASGI application with pop-ups and slow pages, to look at: ``uvicorn --factory MODULE:demo``."""
    return Site(draw_town(seed=0, size=8, wordings=3, places=12), Rules(holds=3, popups=True, slow=0.1)).app()
