"""A stand-in for forkd's controller: its verbs as its page tells them; a microVM is a folder in bubblewrap."""

import json
import shutil
import subprocess
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_BOX = ("bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin")
_LIBRARIES = ("--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64", "--dev", "/dev", "--bind")


class Forkd(ThreadingHTTPServer):
    """A controller on loopback with one snapshot, ``python``. It wants the key ``sesame``."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder, self.number = folder, 0
        (folder / "snapshots" / "python").mkdir(parents=True)
        (folder / "sandboxes").mkdir()

    def names(self, kind: str) -> list[str]:
        return sorted(each.name for each in (self.folder / kind).iterdir())

    def copied(self, source: str, kind: str) -> str:
        self.number += 1
        shutil.copytree(self.folder / source, self.folder / kind / f"n{self.number}", symlinks=True)
        return f"n{self.number}"


class _Handler(BaseHTTPRequestHandler):
    server: Forkd

    def do_GET(self) -> None:
        self._answer(200, [{"tag": name} for name in self.server.names("snapshots")])

    def do_DELETE(self) -> None:
        shutil.rmtree(self.server.folder / self.path.removeprefix("/v1/"))
        self._answer(204)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        match self.path.removeprefix("/v1/").split("/"):
            case ["sandboxes"]:
                self._answer(201, [{"id": self.server.copied(f"snapshots/{asked['snapshot_tag']}", "sandboxes")}])
            case ["sandboxes", name, "branch"]:
                self._answer(201, {"tag": self.server.copied(f"sandboxes/{name}", "snapshots")})
            case ["sandboxes", name, "exec"]:
                command = [*_BOX, *_LIBRARIES, str(self.server.folder / "sandboxes" / name), "/tmp", *asked["args"]]
                try:
                    ran = subprocess.run(command, capture_output=True, text=True, timeout=asked["timeout_secs"])
                    self._answer(200, {"stdout": ran.stdout, "stderr": ran.stderr, "exit_code": ran.returncode})
                except subprocess.TimeoutExpired:
                    self._answer(500, {"error": "it took too long"})

    def _answer(self, code: int, body: Any = None) -> None:
        allowed = self.headers["Authorization"] == "Bearer sesame"
        self.send_response(code if allowed else 401)
        self.end_headers()
        if code != 204:
            self.wfile.write(json.dumps(body if allowed else {"error": "no"}).encode())

    def log_message(self, format: str, *args: object) -> None:
        pass
