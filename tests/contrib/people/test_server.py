"""Access control of the review server, and that every acknowledged mark is on disk."""

import http.client
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from review_sample import sample_run

from treeagent.contrib.people.marks import FILE, read_marks
from treeagent.contrib.people.queue import review_queue
from treeagent.contrib.people.server import Review, ReviewServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ReviewServer]:
    run = sample_run(tmp_path / "run")
    pairs = [item for item in review_queue(run) if item.kind == "pair"]
    with ReviewServer(Review(run, pairs, "ada")) as served:
        thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield served
        served.shutdown()
        thread.join()


def ask(server: ReviewServer, method: str, place: str, body: Any = None, **headers: str | None) -> tuple[int, Any]:
    """Send a request as the page does, with some headers changed; None removes a header."""
    host = f"127.0.0.1:{server.server_address[1]}"
    usual: dict[str, str | None] = {"Host": host, "Content-Type": "application/json", "Origin": f"http://{host}"}
    usual |= {name.replace("_", "-"): value for name, value in headers.items()}
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    connection.putrequest(method, place, skip_host=True)
    content = body if isinstance(body, bytes) else orjson.dumps(body) if body is not None else b""
    for name, value in {**usual, "Content-Length": usual.get("Content-Length", str(len(content)))}.items():
        if value is not None:
            connection.putheader(name, value)
    connection.endheaders(content)
    answer = connection.getresponse()
    told = answer.read()
    connection.close()
    return answer.status, orjson.loads(told) if answer.getheader(
        "Content-Type"
    ) == "application/json" else told.decode()


def state(server: ReviewServer, place: str = "") -> Any:
    status, told = ask(server, "GET", f"/{server.token}/api/state{place}")
    assert status == 200
    return told


def mark(server: ReviewServer, number: int, **asked: Any) -> tuple[int, Any]:
    return ask(server, "POST", f"/{server.token}/api/mark", {"id": f"{number:032x}", **asked})


def marks(server: ReviewServer) -> list[str]:
    return [each.verdict for each in read_marks(server.review.run.path / FILE)]


def test_the_page_holds_no_token_and_runs_its_own_script_alone(server: ReviewServer) -> None:
    status, page = ask(server, "GET", f"/{server.token}/")
    assert status == 200 and server.token not in page and str(server.server_address[1]) not in page
    [policy] = re.findall('Content-Security-Policy" content="([^"]*)"', page)
    assert policy.startswith("default-src &#x27;none&#x27;; script-src &#x27;sha256-")
    assert "unsafe" not in policy and "connect-src &#x27;self&#x27;" in policy


@pytest.mark.parametrize(
    "place, headers, status",
    [
        ("/{token}/api/state", {"Host": "evil.example"}, 421),
        ("/{token}/api/state", {"Host": None}, 421),
        ("/{token}/api/state", {"Host": "localhost:{port}"}, 200),
        ("/api/state", {}, 403),
        ("/{token}x/api/state", {}, 403),
        ("/{token}/../config.toml", {}, 404),
    ],
)
def test_only_its_own_host_and_token_are_served(
    server: ReviewServer, place: str, headers: dict[str, str | None], status: int
) -> None:
    port = str(server.server_address[1])
    sent = {name: value and value.replace("{port}", port) for name, value in headers.items()}
    assert ask(server, "GET", place.replace("{token}", server.token), **sent)[0] == status


@pytest.mark.parametrize(
    "headers, body, status",
    [
        ({"Origin": None}, {}, 403),
        ({"Origin": "http://evil.example"}, {}, 403),
        ({"Content_Type": "text/plain"}, {}, 415),
        ({"Content_Length": str(1 << 21)}, {}, 413),
        ({}, b"{", 400),
        ({}, {"id": 3}, 400),
    ],
)
def test_only_its_own_page_may_send_marks(
    server: ReviewServer, headers: dict[str, str | None], body: Any, status: int
) -> None:
    port = str(server.server_address[1])
    sent = {name: value and value.replace("{port}", port) for name, value in headers.items()}
    assert ask(server, "POST", f"/{server.token}/api/mark", body, **sent)[0] == status
    assert marks(server) == []


def test_a_judged_item_leaves_the_queue_and_comes_back_when_the_mark_is_withdrawn(server: ReviewServer) -> None:
    first = state(server)
    item = first["item"]
    assert mark(server, 1, item=item["id"], verdict="better", choice=1, note="cheaper") == (200, {"stored": True})
    assert mark(server, 1, item=item["id"], verdict="better", choice=1) == (200, {"stored": False})
    [stored] = read_marks(server.review.run.path / FILE)
    assert stored.shown[1] == item["actions"][1]["text"] and (stored.who, stored.note) == ("ada", "cheaper")
    after = state(server, f"/{item['id']}")
    assert after["item"]["id"] != item["id"] and after["waiting"] == first["waiting"] - 1
    ask(server, "POST", f"/{server.token}/api/withdraw", {"id": "2" * 32, "mark": stored.id})
    assert state(server)["waiting"] == first["waiting"] and marks(server) == ["better", "withdraw"]
