"""Language models that sample: prompts and samples as token ids, with the log-probability of every sampled token.

``LocalGenerator`` runs a transformers model in this process, ``VllmGenerator`` a vLLM engine, and ``RemoteGenerator``
asks a server; all three answer a ``SampleRequest``. ``ChatFormat`` turns conversations into prompts, and a ``Grammar``
turns the text of a sample into an action.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from treeagent.generators.base import Failure, Generator, Pause, Sample, SampleRequest
from treeagent.generators.config import RemoteConfig, ScratchConfig, VllmConfig
from treeagent.generators.grammar import Grammar
from treeagent.generators.usage import Usage

if TYPE_CHECKING:  # these load torch or need an extra
    from treeagent.generators.chat import ChatFormat
    from treeagent.generators.local import LocalGenerator
    from treeagent.generators.remote import RemoteChat, RemoteGenerator
    from treeagent.generators.structured import Form
    from treeagent.generators.vllm import VllmGenerator

__all__ = [
    "ChatFormat",
    "Failure",
    "Form",
    "Generator",
    "Grammar",
    "LocalGenerator",
    "Pause",
    "RemoteChat",
    "RemoteConfig",
    "RemoteGenerator",
    "Sample",
    "SampleRequest",
    "ScratchConfig",
    "Usage",
    "VllmConfig",
    "VllmGenerator",
]

_LATE = {
    "ChatFormat": "chat",
    "LocalGenerator": "local",
    "RemoteChat": "remote",
    "RemoteGenerator": "remote",
    "Form": "structured",
    "VllmGenerator": "vllm",
}


def __getattr__(name: str) -> object:
    """Import a name of ``_LATE`` when it is first used."""
    if name in _LATE:
        return getattr(import_module(f"{__name__}.{_LATE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
