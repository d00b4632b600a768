"""Sandboxes with a real shell: bubblewrap or a container gives each command new namespaces and a folder in memory."""

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Sequence

from treeagent.contrib.worlds.sandbox.box import LARGEST, FileBox, Ran, inside
from treeagent.contrib.worlds.sandbox.process import read_pipes
from treeagent.types import UserError

_HOLDER = r"""
import json, os, resource, signal, subprocess, sys
asked, box = json.loads(sys.stdin.buffer.read()), sys.argv[1]
os.makedirs(box, exist_ok=True)
for path, text in asked["files"].items():
    os.makedirs(os.path.dirname(os.path.join(box, path)), exist_ok=True)
    with open(os.path.join(box, path), "w", encoding="utf-8", newline="") as file:
        file.write(text)
if box == "/box":  # in a namespace of users it counts only what runs there; containers have a limit of their own
    resource.setrlimit(resource.RLIMIT_NPROC, (64, 64))
with open("/tmp/output", "w+b") as output:
    command = subprocess.Popen(["/bin/sh", "-c", asked["command"]], cwd=box, stdin=subprocess.DEVNULL, stdout=output,
                               stderr=output, close_fds=True)
    try:
        code = command.wait(asked["seconds"])
    except subprocess.TimeoutExpired:
        code = 124
    try:
        os.kill(-1, signal.SIGKILL)  # daemons, too; the holder itself and the namespace's init are spared
    except ProcessLookupError:
        pass
    output.seek(0)
    said = output.read(asked["most"]).decode(errors="replace")
files, left = {}, asked["most"]
for folder, _, names in os.walk(box):
    for path in (os.path.join(folder, name) for name in names):
        if os.path.isfile(path) and not os.path.islink(path) and (left := left - os.path.getsize(path)) >= 0:
            with open(path, encoding="utf-8", errors="replace", newline="") as file:
                files[os.path.relpath(path, box)] = file.read()
print(json.dumps([code, said, files if left >= 0 else None]))
"""
"""Runs inside: writes the files, runs the command, ends what it left behind, and answers with the files."""

_AS_NOBODY = 'mount --bind "$0" /mnt && exec setpriv --reuid=65534 --regid=65534 --clear-groups "$@"'
"""Run by root, in a mount namespace: nobody may not enter the folders above the packages, such as those of a virtual
environment in ``/root``, so they are mounted where everybody may go."""


class ShellBox(FileBox):
    """A box with a shell, processes, and what ``/usr`` holds (``python`` is the system's), for Linux with bubblewrap.

    A command sees no other file of the host, no network, and no process but its own. It can write to ``/box`` and
    ``/tmp``, in memory; what is in ``/box`` at its end is kept, as texts and without links. ``python`` also finds the
    packages of treeagent's own environment. As root, commands run as nobody."""

    def __init__(self, seconds: float = 10.0, megabytes: int = 256) -> None:
        super().__init__()
        if shutil.which("bwrap") is None:
            raise UserError("the shell's sandbox needs bubblewrap: apt-get install bubblewrap")
        packages = sysconfig.get_path("purelib")
        nobody: tuple[str, ...] = ()
        if os.getuid() == 0:
            nobody, packages = ("unshare", "--mount", "sh", "-c", _AS_NOBODY, packages), "/mnt"
        # Each process may use this much memory: what holds them all together is the number of processes.
        limits = (f"--as={megabytes << 20}", f"--fsize={megabytes << 20}", "--core=0")
        size = str(megabytes << 20)
        self._command = [
            *(
                *nobody,
                "prlimit",
                *limits,
                "bwrap",
                "--unshare-all",
                "--die-with-parent",
                "--new-session",
                "--clearenv",
            ),
            *("--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib"),
            *("--symlink", "usr/lib64", "/lib64", "--symlink", "usr/sbin", "/sbin", "--proc", "/proc", "--dev", "/dev"),
            *("--size", size, "--tmpfs", "/tmp", "--size", size, "--tmpfs", "/box", "--chdir", "/box"),
            *("--dir", "/tools", "--symlink", "/usr/bin/python3", "/tools/python", "--setenv", "HOME", "/tmp"),
            *("--ro-bind", packages, "/packages", "--setenv", "PYTHONPATH", "/packages"),
            *("--setenv", "PYTHONDONTWRITEBYTECODE", "1"),
            *("--setenv", "PATH", "/tools:/usr/bin", "--setenv", "PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1"),
            *("--setenv", "PYTEST_ADDOPTS", "-qq -p no:cacheprovider"),  # no seconds, by which a replay would differ
            *("/usr/bin/python3", "-sSI", "-c", _HOLDER, "/box"),
        ]
        self._seconds = seconds
        self._prove("bubblewrap cannot make a sandbox here", "allow user namespaces")

    def _prove(self, fault: str, fix: str) -> None:
        if (ran := self.run("true")).code:
            raise UserError(f"{fault} ({ran.output.strip()}): {fix}")

    def run(self, command: str) -> Ran:
        with contextlib.suppress(ValueError):  # what is no plain command is the shell's
            if (ran := self.plain(shlex.split(command))) is not None:
                return ran
        request = {"files": dict(self.files), "command": command, "seconds": self._seconds, "most": LARGEST}
        with subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            cwd=tempfile.gettempdir(),  # podman notes there that memory ran out
        ) as process:
            assert process.stdin is not None and process.stdout is not None and process.stderr is not None
            try:
                process.stdin.write(json.dumps(request).encode())
                process.stdin.close()
                deadline = time.monotonic() + self._seconds + 5
                (answer, said), error = read_pipes([process.stdout.fileno(), process.stderr.fileno()], deadline, 2**22)
            except BrokenPipeError:
                answer, said, error = b"", b"", "the sandbox ended"
            finally:
                process.kill()
        try:
            code, output, files = json.loads(answer)
            kept = None if files is None else {inside(str(path)): str(text) for path, text in files.items()}
            ran = Ran(str(output), int(code))
        except (AttributeError, TypeError, ValueError):  # the command ended what holds it, or wrote in its place
            return Ran(error or said.decode(errors="replace") or "the sandbox was lost", 1)
        if kept is None:
            return Ran(f"{output}\nnothing is kept: the box holds at most {LARGEST} bytes", 1)
        self.files = kept
        return ran


class ContainerBox(ShellBox):
    """A box whose commands run in containers of Docker or Podman, one each, in an image with ``sh`` and ``python3``.

    ``container`` is the command that runs the image, such as ``["docker", "run", "python:3.12-slim"]``. A container has
    no network, no capabilities, and can write to ``/tmp`` alone, in memory; it runs as nobody."""

    def __init__(self, container: Sequence[str], seconds: float = 10.0, megabytes: int = 256) -> None:
        FileBox.__init__(self)
        if "run" not in container or shutil.which(container[0]) is None:
            raise UserError(
                f"environment.options.container is {list(container)}: name an engine that is installed, and run"
            )
        image = container.index("run") + 1
        limits = (f"--memory={megabytes}m", "--pids-limit=64", f"--tmpfs=/tmp:rw,exec,size={megabytes}m")
        rights = ("--user=65534:65534", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--read-only")
        python = ("python3", "-sSI", "-c", _HOLDER, "/tmp/box")
        options = ("--rm", "--interactive", "--network=none", *limits, *rights)
        self._command = [*container[:image], *options, *container[image:], *python]
        self._seconds = seconds
        self._prove(f"{container[0]} runs no container here", "see environment.options.container")
