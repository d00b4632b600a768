"""A sandbox in a microVM of a forkd controller, by its HTTP interface (docs/API.md of the project forkd, version 1)."""

import contextlib
import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from treeagent.contrib.worlds.sandbox.box import LARGEST, Ran, inside
from treeagent.types import UserError

_RUN = 'mkdir -p /tmp/box && cd /tmp/box && exec sh -c "$1"'
_APPEND = 'mkdir -p "$(dirname "$1")" && printf %s "$2" >> "$1"'
_PIECE = 30_000
"""Characters of a file that one command writes: Linux takes arguments of 128 kB."""
_PATIENCE = 60.0
"""Seconds that an answer may take beyond those of a command."""


class HostedBox:
    """A box whose state is a microVM. A snapshot is the name of one of forkd's, and a return to it forks a new microVM.

    ``image`` names the snapshot that boxes start from, which must have ``sh``. Snapshots last until ``close``."""

    def __init__(self, url: str, key: str, image: str, seconds: float = 10.0, megabytes: int = 256) -> None:
        self._url, self._key = url.rstrip("/"), os.environ.get(key, "")
        self._image, self._seconds, self._megabytes = image, seconds, megabytes
        self._machine = self._at = ""
        """The microVM, and the snapshot that it still equals."""
        self._made = list[str]()
        try:
            known = [str(each["tag"]) for each in self._ask("GET", "snapshots")]
        except OSError as error:
            raise UserError(
                f"no forkd answers at environment.options.url {url!r} with the key of {key} ({error})"
            ) from error
        if image not in known:
            raise UserError(f"environment.options.image {image!r} is none of forkd's snapshots: {', '.join(known)}")

    def start(self, files: Mapping[str, str]) -> None:
        self.restore(self._image)
        for path, text in files.items():
            for begin in range(0, max(len(text), 1), _PIECE):
                self._run(_APPEND, f"/tmp/box/{inside(path)}", text[begin : begin + _PIECE])

    def run(self, command: str) -> Ran:
        try:
            return self._run(_RUN, command)
        except urllib.error.HTTPError as error:
            with error:
                return Ran(f"the command was stopped ({error.read(1000).decode(errors='replace')})", 1)

    def snapshot(self) -> object:
        if not self._at:
            self._at = str(self._ask("POST", f"sandboxes/{self._machine}/branch", {})["tag"])
            self._made.append(self._at)
        return self._at

    def restore(self, snapshot: object) -> None:
        if self._at != snapshot:
            self._end()
            wanted = {"snapshot_tag": snapshot, "n": 1, "memory_limit_mib": self._megabytes}
            (made,) = self._ask("POST", "sandboxes", wanted)
            self._machine, self._at = str(made["id"]), str(snapshot)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._end()
            while self._made:
                self._ask("DELETE", f"snapshots/{self._made.pop()}")

    def _end(self) -> None:
        if self._machine:
            machine, self._machine, self._at = self._machine, "", ""
            self._ask("DELETE", f"sandboxes/{machine}")

    def _run(self, program: str, *arguments: str) -> Ran:
        self._at = ""
        wanted = {"args": ["sh", "-c", program, "sh", *arguments], "timeout_secs": max(1, round(self._seconds))}
        ran = self._ask("POST", f"sandboxes/{self._machine}/exec", wanted)
        return Ran(f"{ran['stdout']}{ran['stderr']}"[:LARGEST], int(ran["exit_code"]))

    def _ask(self, verb: str, path: str, body: object = None) -> Any:
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self._key}"} if self._key else {})
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(f"{self._url}/v1/{path}", data, headers, method=verb)
        with urllib.request.urlopen(asked, timeout=self._seconds + _PATIENCE) as answer:
            return json.loads(answer.read() or "null")
