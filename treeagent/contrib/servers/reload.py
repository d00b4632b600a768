"""Load a new adapter on running vLLM servers, by vLLM's own request."""

from hashlib import blake2b
from pathlib import Path

from treeagent.generators.base import Failure
from treeagent.generators.config import RemoteConfig
from treeagent.generators.remote import Server
from treeagent.types import UserError

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


class _Any(Server):
    """A connection to a server of whatever model."""

    def __init__(self, url: str, timeout: float) -> None:
        super().__init__(RemoteConfig(url=url, timeout=timeout), "", retries=0)

    def _find(self) -> tuple[str, int]:
        return "", 0

    def names(self) -> set[str]:
        return {model.id for model in self.served_models()}
