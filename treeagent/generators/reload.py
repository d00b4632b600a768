"""New weights on running servers, by a command of the user's own."""

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path, PurePath
from tempfile import TemporaryFile

from treeagent.generators.config import RemoteConfig
from treeagent.generators.servers import connect, named
from treeagent.threads import side_by_side
from treeagent.types import UserError, storable

_MOST_SECONDS = 900.0
"""Most seconds in which the command must end, and again in which the server must then serve the weights."""
_POLL_SECONDS = 1.0
_CHECK_SECONDS = 10.0


def reload(config: RemoteConfig, checkpoint: str, command: Sequence[str]) -> list[str]:
    """Run ``command`` for each server that does not serve ``checkpoint``, and wait until it does.

    Args:
        checkpoint: a folder or a name on the model hub. A server that serves another folder of the same name is
            reloaded too.
        command: a program and its arguments, in which ``{checkpoint}`` and ``{url}`` are replaced. Without ``{url}``
            it runs once for all servers.

    Returns:
        why servers still do not serve it, a sentence each.

    Raises:
        UserError: none of them does.
    """
    place = str(Path(checkpoint).resolve()) if Path(checkpoint).exists() else checkpoint
    stale = [url for url in config.urls if not {place, checkpoint} & _served(url)]
    each = any("{url}" in word for word in command)
    failed = "" if each or not stale else _run(command, place, "")

    def bring(url: str) -> str:
        why = _run(command, place, url) if each else failed
        return why or _wait(url, place)

    reasons = [why for why in side_by_side(bring, stale, len(stale)) if why]
    if reasons and len(reasons) == len(config.urls):
        raise UserError(f"{reasons[0]}: correct policy.reload or the server, then go on with --resume")
    return reasons


def _run(command: Sequence[str], checkpoint: str, url: str) -> str:
    """Why the command failed; empty if it did not."""
    words = [word.replace("{checkpoint}", checkpoint).replace("{url}", url) for word in command]
    with TemporaryFile() as told:  # a pipe would stay open as long as a server that the command starts
        try:
            code = subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=told, stderr=subprocess.STDOUT, timeout=_MOST_SECONDS
            ).returncode
        except OSError as error:
            return f"policy.reload {words[0]!r} cannot be run ({error.strerror})"
        except subprocess.TimeoutExpired:
            return f"policy.reload {words[0]!r} did not end within {_MOST_SECONDS:g} s"
        told.seek(0)
        lines = storable(told.read().decode(errors="replace")).split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "without a word")
    return f"policy.reload {words[0]!r} ended with {code} ({last[:200]})" if code else ""


def _wait(url: str, checkpoint: str) -> str:
    """Why the server does not serve the checkpoint in time; empty if it does."""
    until = time.monotonic() + _MOST_SECONDS
    while True:
        served = _served(url)
        if PurePath(checkpoint).name in {PurePath(name).name for name in served}:
            return ""
        if time.monotonic() > until:
            names = ", ".join(map(repr, sorted(served))) or "nothing"
            return f"the server at {url} serves {names} after policy.reload, not {PurePath(checkpoint).name!r}"
        time.sleep(_POLL_SECONDS)


def _served(url: str) -> set[str]:
    """Names of what a server serves; none where it does not answer."""
    try:
        with connect(url, retries=0, timeout=_CHECK_SECONDS) as client:
            return {name for model in client.models.list() for name in named(model)}
    except Exception:  # whatever a server says while it starts
        return set()
