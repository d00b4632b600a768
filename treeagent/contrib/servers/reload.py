"""Load new weights on running servers with a command that the user provides."""

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path, PurePath
from tempfile import TemporaryFile

from treeagent.contrib.servers.servers import connect, model_names
from treeagent.generators.config import RemoteConfig
from treeagent.threads import map_in_threads
from treeagent.types import UserError, storable

_MOST_SECONDS = 900.0
"""Seconds within which the command must end, and again seconds within which the server must then serve the weights."""
_POLL_SECONDS = 1.0
_CHECK_SECONDS = 10.0


def reload(config: RemoteConfig, checkpoint: str, command: Sequence[str]) -> list[str]:
    """Run ``command`` for each server that does not serve ``checkpoint``, and wait until it does.

    Args:
        checkpoint: a folder or a name on the model hub. A server of another folder with the same name is reloaded, too.
        command: a program and its arguments, in which ``{checkpoint}`` and ``{url}`` are replaced. Without ``{url}``
            it runs once for all servers.

    Returns:
        one sentence for each server that still does not serve the checkpoint, with the reason.

    Raises:
        UserError: no server serves the checkpoint.
    """
    checkpoint_path = str(Path(checkpoint).resolve()) if Path(checkpoint).exists() else checkpoint
    outdated = [url for url in config.urls if not {checkpoint_path, checkpoint} & set().union(*_served(url))]
    each = any("{url}" in word for word in command)
    failed = "" if each or not outdated else _run(command, checkpoint_path, "")

    def reload_one(url: str) -> str:
        why = _run(command, checkpoint_path, url) if each else failed
        return why or _wait(url, checkpoint_path)

    reasons = [why for why in map_in_threads(reload_one, outdated, len(outdated)) if why]
    if reasons and len(reasons) == len(config.urls):
        raise UserError(f"{reasons[0]}: correct policy.reload or the server, then go on with --resume")
    return reasons


def _run(command: Sequence[str], checkpoint: str, url: str) -> str:
    """Run the command. Returns the reason why it failed; empty if it succeeded."""
    words = [word.replace("{checkpoint}", checkpoint).replace("{url}", url) for word in command]
    with TemporaryFile() as output:  # a pipe would stay open as long as a server runs that the command has started
        try:
            code = subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, timeout=_MOST_SECONDS
            ).returncode
        except OSError as error:
            return f"policy.reload {words[0]!r} cannot be run ({error.strerror})"
        except subprocess.TimeoutExpired:
            return f"policy.reload {words[0]!r} did not end within {_MOST_SECONDS:g} s"
        output.seek(0)
        lines = storable(output.read().decode(errors="replace")).split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "without a word")
    return f"policy.reload {words[0]!r} ended with {code} ({last[:200]})" if code else ""


def _wait(url: str, checkpoint: str) -> str:
    """Wait until the server serves the checkpoint. Returns the reason why it does not in time; empty if it does."""
    deadline = time.monotonic() + _MOST_SECONDS
    while True:
        served = _served(url)
        if any(_are_of(names, checkpoint) for names in served):
            return ""
        if time.monotonic() > deadline:
            others = ", ".join(map(repr, sorted(set().union(*served)))) or "nothing"
            return f"the server at {url} serves {others} after policy.reload, not {checkpoint!r}"
        time.sleep(_POLL_SECONDS)


def _are_of(names: set[str], checkpoint: str) -> bool:
    """Whether the names of a served model are those of the checkpoint. Their last parts alone count only if the names
    or the checkpoint hold no absolute path, because folders of several runs have the same name."""
    folders = {path for path in map(PurePath, names) if path.is_absolute()}
    if folders and PurePath(checkpoint).is_absolute():
        return PurePath(checkpoint) in folders
    return PurePath(checkpoint).name in {PurePath(name).name for name in names}


def _served(url: str) -> list[set[str]]:
    """The names of each model that a server serves; empty if it does not answer."""
    try:
        with connect(url, retries=0, timeout=_CHECK_SECONDS) as client:
            return [model_names(model) for model in client.models.list()]
    except Exception:  # a server that is starting may answer anything
        return []
