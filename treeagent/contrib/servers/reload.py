"""Load new weights on running servers: an adapter by vLLM's own request, or a checkpoint by the user's command."""

import fcntl
import subprocess
import time
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path, PurePath
from tempfile import TemporaryFile, gettempdir

from treeagent.generators.base import Failure
from treeagent.generators.config import RemoteConfig
from treeagent.generators.remote import Server
from treeagent.threads import map_in_threads
from treeagent.types import UserError, storable

_MOST_SECONDS = 900.0
"""Seconds within which the command must end, and again seconds within which the server must then serve the weights."""
_POLL_SECONDS = 1.0
_CHECK_SECONDS = 10.0
_LOAD_SECONDS = 120.0
"""Seconds within which a server must load an adapter."""


def adapter_name(folder: Path) -> str:
    """The name under which servers load an adapter: the folder's name and a digest of its weights, so that different
    adapters never have the same name."""
    try:
        weights = (folder / "adapter_model.safetensors").read_bytes()
    except OSError as error:
        raise UserError(f"the adapter in {folder} cannot be read ({error.strerror}): give another checkpoint") from None
    return f"{folder.resolve().name}-{blake2b(weights, digest_size=6).hexdigest()}"


def load_adapter(url: str, folder: Path) -> str:
    """Make a vLLM server of the base model load an adapter, unless it has it. Returns its name there."""
    name, server = adapter_name(folder), _Any(url, _LOAD_SECONDS)
    if name in server.names():
        return name
    body = {"lora_name": name, "lora_path": str(folder.resolve())}
    try:
        loaded = server.ask(lambda: server.client.post("/load_lora_adapter", cast_to=str, body=body))
        why = loaded.reason if isinstance(loaded, Failure) else "it says that it has"
    except UserError as error:
        why = str(error)
    if name not in server.names():  # another worker may have made it load the adapter meanwhile
        raise UserError(
            f"{server} does not load the adapter {folder} ({why}): start vLLM with --enable-lora and "
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 where it can read that folder"
        )
    return name


def reload(urls: Sequence[str], checkpoint: str, command: Sequence[str]) -> list[str]:
    """Run ``command`` for each server that does not serve ``checkpoint``, and wait until it does. Other workers on this
    machine wait meanwhile. Returns one sentence for each server that still does not serve it.

    Args:
        checkpoint: a folder or a name on the model hub. A server of another folder with the same name is reloaded, too.
        command: a program and its arguments, in which ``{checkpoint}`` and ``{url}`` are replaced. Without ``{url}``
            it runs once for all servers.
    """
    lock = Path(gettempdir()) / f"treeagent-reload-{blake2b(' '.join(urls).encode(), digest_size=6).hexdigest()}"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        path = str(Path(checkpoint).resolve()) if Path(checkpoint).exists() else checkpoint
        outdated = [url for url in urls if not {path, checkpoint} & set().union(*_served(url))]
        each = any("{url}" in word for word in command)
        failed = "" if each or not outdated else _run(command, path, "")

        def reload_one(url: str) -> str:
            why = _run(command, path, url) if each else failed
            return why or _wait(url, path)

        reasons = [why for why in map_in_threads(reload_one, outdated, len(outdated)) if why]
    if reasons and len(reasons) == len(urls):
        raise UserError(f"{reasons[0]}: correct policy.options.reload or the server, then go on with --resume")
    return reasons


class _Any(Server):
    """A connection to a server of whatever model."""

    def __init__(self, url: str, timeout: float) -> None:
        super().__init__(RemoteConfig(url=url, timeout=timeout), "", retries=0)

    def _find(self) -> tuple[str, int]:
        return "", 0

    def names(self) -> set[str]:
        return {model.id for model in self.served_models()}


def _run(command: Sequence[str], checkpoint: str, url: str) -> str:
    """Run the command. Returns the reason why it failed; empty if it succeeded."""
    words = [word.replace("{checkpoint}", checkpoint).replace("{url}", url) for word in command]
    with TemporaryFile() as output:  # a pipe would stay open as long as a server runs that the command has started
        try:
            code = subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, timeout=_MOST_SECONDS
            ).returncode
        except OSError as error:
            return f"the command {words[0]!r} cannot be run ({error.strerror})"
        except subprocess.TimeoutExpired:
            return f"the command {words[0]!r} did not end within {_MOST_SECONDS:g} s"
        output.seek(0)
        lines = storable(output.read().decode(errors="replace")).split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "without a word")
    return f"the command {words[0]!r} ended with {code} ({last[:200]})" if code else ""


def _wait(url: str, checkpoint: str) -> str:
    """Wait until the server serves the checkpoint. Returns the reason why it does not in time; empty if it does."""
    deadline = time.monotonic() + _MOST_SECONDS
    while True:
        served = _served(url)
        if any(_are_of(names, checkpoint) for names in served):
            return ""
        if time.monotonic() > deadline:
            others = ", ".join(map(repr, sorted(set().union(*served)))) or "nothing"
            return f"the server at {url} serves {others} after the command, not {checkpoint!r}"
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
        models = _Any(url, _CHECK_SECONDS).served_models()
    except UserError:  # a server that is starting may answer anything
        return []
    return [{str(name) for name in (model.id, (model.model_extra or {}).get("root")) if name} for model in models]
