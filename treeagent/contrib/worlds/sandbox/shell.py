"""A sandbox with a real shell: bubblewrap gives each command new namespaces and a new folder in memory."""

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sysconfig
import time

from treeagent.contrib.worlds.sandbox.box import LARGEST, FileBox, Ran, inside
from treeagent.contrib.worlds.sandbox.process import read_pipes
from treeagent.types import UserError

_HOLDER = r"""
import json, os, resource, signal, subprocess, sys
asked, box = json.loads(sys.stdin.buffer.read()), "/box"
for path, text in asked["files"].items():
    os.makedirs(os.path.dirname(os.path.join(box, path)), exist_ok=True)
    with open(os.path.join(box, path), "w", encoding="utf-8", newline="") as file:
        file.write(text)
resource.setrlimit(resource.RLIMIT_NPROC, (64, 64))  # set in the namespace, it counts only what runs there
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
            *("/usr/bin/python3", "-sSI", "-c", _HOLDER),
        ]
        self._seconds = seconds
        if (ran := self.run("true")).code:
            raise UserError(f"bubblewrap cannot make a sandbox here ({ran.output.strip()}): allow user namespaces")

    def run(self, command: str) -> Ran:
        with contextlib.suppress(ValueError):  # what is no plain command is the shell's
            if (ran := self.plain(shlex.split(command))) is not None:
                return ran
        request = {"files": dict(self.files), "command": command, "seconds": self._seconds, "most": LARGEST}
        with subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
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
