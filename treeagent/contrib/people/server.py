"""The review page and its JSON interface, on 127.0.0.1 only. A request needs the secret token in its path and the
server's own ``Host``; a mark needs its ``Origin``. A mark is on disk before it is acknowledged, and is stored once."""

import hmac
import re
import secrets
import sys
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Annotated, Any

import orjson
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from treeagent.contrib.guards.patterns import format_call, format_named
from treeagent.contrib.people.marks import (
    FILE,
    Mark,
    Verdict,
    append_mark,
    effective_marks,
    new_mark,
    read_marks,
    state_hash,
)
from treeagent.contrib.people.queue import Item, load, node_at, shown_order
from treeagent.contrib.viewer.page import html
from treeagent.pipeline.folder import Run
from treeagent.pipeline.report.describe import observation, steps
from treeagent.search.node import Edge, Node
from treeagent.store import StoreError
from treeagent.types import Message, UserError, storable
from treeagent.visible import visible

_LONGEST = 1 << 20
"""Most bytes of a request's body."""
_RECENT = 20
"""How many of the reviewer's own marks the page lists."""
_HEADERS = {
    # This policy is sent with every response. The page itself also has a policy, which allows its script by a hash.
    "Content-Security-Policy": "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Review:
    """The queue and the marks of one reviewer. Thread-safe."""

    def __init__(self, run: Run, items: list[Item], who: str) -> None:
        self.run, self.who = run, who
        self._items = {item.id: item for item in items}
        self._path = run.path / FILE

    def state(self, after: str = "") -> dict[str, Any]:
        """The state of the page as JSON values: the next item that this reviewer has not judged, counts of items, the
        reviewer's latest marks. The next item is looked for behind the item ``after``, or with the prefix "at/" from
        that item on."""
        stays, after = after.startswith("at/"), after.removeprefix("at/")
        own = [mark for mark in effective_marks(read_marks(self._path)) if mark.who == self.who]
        judged = {mark.item for mark in own if mark.choice is None or mark.verdict == "better"}
        waiting = [item for item in self._items.values() if (item.state, frozenset(item.texts)) not in judged]
        indices = {known: index for index, known in enumerate(self._items)}
        start = indices.get(after, -1)
        later = [item for item in waiting if indices[item.id] > start - stays] if start >= 0 else waiting
        chosen = next(iter(later or waiting), None)
        return {
            "who": visible(self.who),
            "run": visible(self.run.path.resolve().name),
            "waiting": len(waiting),
            "judged": len(indices) - len(waiting),
            "item": None if chosen is None else self.shown(chosen),
            "marks": [_mark_json(mark) for mark in own[: -_RECENT - 1 : -1]],
        }

    def shown(self, item: Item) -> dict[str, Any]:
        """An item as the page shows it: without values, visits, rewards or anyone's preferences."""
        actions = self._actions(item)
        return {
            "id": item.id,
            "kind": item.kind,
            "task": visible(item.task_id),
            "talk": _messages_json(actions[0][0].state.messages),
            "actions": [_action(*each) for each in actions],
        }

    def _actions(self, item: Item) -> list[tuple[Node, Edge]]:
        """The actions of an item in the order in which this reviewer sees them, each with the state before it."""
        tree = load(self.run, item)
        if item.kind == "episode":
            return list(zip(tree.states(path := steps(tree)), path, strict=False))
        node = node_at(tree, item.path)
        edges = {edge.action.text: edge for edge in reversed(node.edges)}
        return [(node, edges[item.texts[index]]) for index in shown_order(self.who, item)]

    def mark(self, request: "_Mark") -> bool:
        """Store a mark that the page sent; False if it was stored before."""
        item, verdict, choice = self._items.get(request.item), request.verdict, request.choice
        if item is None:
            raise UserError("this item is not in the queue: load the page again")
        if verdict == "withdraw" or verdict in (_OF_EPISODES if item.kind == "pair" else _OF_PAIRS):
            raise UserError(f"{verdict!r} is no verdict on this: load the page again")
        actions, state = self._actions(item), item.state
        if item.kind == "episode" and choice is not None and 0 <= choice < len(actions):
            actions = [actions[choice]]  # one step, marked at the state before it
            state, choice = state_hash(item.task_id, actions[0][0].state.messages), 0
        try:
            mark = new_mark(
                self.who,
                verdict,
                id=request.id,
                task_id=item.task_id,
                state=state,
                choice=choice,
                shown=tuple(edge.action.text for _, edge in actions),
                calls=tuple(format_named(edge.action.call) for _, edge in actions),
                text=storable(request.text) if verdict == "edit" else "",
                note=storable(request.note),
            )
        except ValueError as error:
            raise UserError(f"the mark is incomplete: {error}"[:300]) from None
        return append_mark(self._path, mark)

    def withdraw(self, request: "_Withdrawal") -> bool:
        """Withdraw the reviewer's own mark. Returns False if the withdrawal was already stored."""
        known = {mark.id for mark in read_marks(self._path) if mark.who == self.who and mark.verdict != "withdraw"}
        if request.mark not in known:
            raise UserError("that is no mark of yours: load the page again")
        return append_mark(self._path, new_mark(self.who, "withdraw", id=request.id, withdraws=request.mark))


_OF_PAIRS, _OF_EPISODES = ("better", "tie"), ("solved", "failed")
_Identifier = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]


@dataclass(frozen=True, config=ConfigDict(strict=True))
class _Mark:
    """A mark that the page sends."""

    id: _Identifier
    item: str
    verdict: Verdict
    choice: int | None = None
    """Index of the action as shown, or of a step."""
    text: str = ""
    note: str = ""


@dataclass(frozen=True, config=ConfigDict(strict=True))
class _Withdrawal:
    """A mark that the page takes back."""

    id: _Identifier
    mark: str


def _mark_json(mark: Mark) -> dict[str, Any]:
    return {"id": mark.id, "when": mark.when, "verdict": mark.verdict, "task": visible(mark.task_id), "note": mark.note}


def _messages_json(messages: tuple[Message, ...]) -> list[dict[str, str]]:
    return [{"role": each.role, "text": visible(each.content, lines=True)} for each in messages]


def _action(node: Node, edge: Edge) -> dict[str, Any]:
    action, child, talk = edge.action, edge.child, node.state.messages
    may_edit = not (edge.thought or (talk and talk[-1].partial))
    return {
        "thought": visible(action.thought, lines=True),
        "call": visible(format_call(action.call), lines=True),
        "error": visible(action.error),
        "text": visible(action.text, lines=True),
        "written": action.text if may_edit else None,
        "answer": "" if child is None else visible(observation(node, child), lines=True),
    }


class ReviewServer(ThreadingHTTPServer):
    """Serves one ``Review`` on 127.0.0.1, at the address ``url``, which contains a secret token."""

    daemon_threads = True

    def __init__(self, review: Review, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.review, self.token = review, secrets.token_urlsafe(24)
        self.page = html(
            f"treeagent review: {review.run.path.resolve().name}", {}, script="review.js", connect=["'self'"]
        )

    @property
    def hosts(self) -> tuple[str, ...]:
        """The accepted values of ``Host``. Other names that resolve to this address are refused (DNS rebinding)."""
        return tuple(f"{name}:{self.server_address[1]}" for name in ("127.0.0.1", "localhost"))

    @property
    def url(self) -> str:
        return f"http://{self.hosts[0]}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing for a connection that a browser closed while its request was under way."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: ReviewServer
    timeout = 30
    server_version, sys_version = "treeagent", ""

    def do_GET(self) -> None:
        if (path := self._authorised_path()) is None:
            return
        if path == "":
            self._send(HTTPStatus.OK, self.server.page.encode(), "text/html; charset=utf-8")
        elif path == "api/state" or path.startswith("api/state/"):
            self._answer(lambda: self.server.review.state(path.removeprefix("api/state").strip("/")))
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is nothing here")

    def do_POST(self) -> None:
        if (path := self._authorised_path()) is None:
            return
        origins = self.headers.get_all("Origin", [])
        if origins != [f"http://{self.headers['Host']}"]:
            self._refuse(HTTPStatus.FORBIDDEN, "another page may not send marks")
            return
        if self.headers.get_content_type() != "application/json":
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send application/json")
            return
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch("[0-9]{1,9}", length) or int(length) > _LONGEST:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"send at most {_LONGEST} bytes, and their number")
            return
        body = self.rfile.read(int(length))
        if path == "api/mark":
            self._answer(lambda: {"stored": self.server.review.mark(TypeAdapter(_Mark).validate_json(body))})
        elif path == "api/withdraw":
            self._answer(lambda: {"stored": self.server.review.withdraw(TypeAdapter(_Withdrawal).validate_json(body))})
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is nothing here")

    def _authorised_path(self) -> str | None:
        """The path after the token; None if the request was refused."""
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or hosts[0] not in self.server.hosts:
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "this server answers on its own machine only")
            return None
        token, slash, path = self.path.removeprefix("/").partition("/")
        if not slash or not hmac.compare_digest(token.encode(errors="replace"), self.server.token.encode()):
            self._refuse(HTTPStatus.FORBIDDEN, "open the address that treeagent review printed")
            return None
        return path

    def _answer(self, make: Callable[[], dict[str, Any]]) -> None:
        try:
            self._send(HTTPStatus.OK, orjson.dumps(make()), "application/json")
        except StoreError as error:
            self._refuse(HTTPStatus.INSUFFICIENT_STORAGE, str(error))
        except (UserError, ValidationError) as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self.close_connection = True  # the request's body was not read
        self._send(status, orjson.dumps({"error": why}), "application/json")

    def _send(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Type": kind, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing: a logged address would reveal the token."""
