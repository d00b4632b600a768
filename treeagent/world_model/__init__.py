"""A world model: a language model that plays the environment (DreamGym, section 4.1).

``ExperienceModel`` imagines transitions; ``ReplayBuffer`` is its memory of real steps, of which a prompt shows the most
similar ones; ``Wording`` writes its prompts and reads its answers; ``answer_rows`` makes training rows of real steps
(equation 5); ``audit`` measures how far it can be trusted, and ``lambda_cap`` which share of imagined experience that
allows. ``ImaginedEnv`` lets anything that takes an environment take a world model.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from treeagent.world_model.encoder import Encoder, LexicalEncoder
from treeagent.world_model.environment import ImaginedEnv
from treeagent.world_model.experience import Draft, ExperienceModel, Retriever, Writer
from treeagent.world_model.fidelity import Fidelity, Figures, audit, lambda_cap
from treeagent.world_model.replay import ReplayBuffer
from treeagent.world_model.transition import Experience
from treeagent.world_model.wording import Answer, Wording

if TYPE_CHECKING:  # these load torch or need an extra
    from treeagent.world_model.fit import answer_rows
    from treeagent.world_model.local import HiddenStateEncoder, LocalWriter
    from treeagent.world_model.remote import RemoteWriter
    from treeagent.world_model.sentences import SentenceEncoder

__all__ = [
    "Answer",
    "Draft",
    "Encoder",
    "Experience",
    "ExperienceModel",
    "Fidelity",
    "Figures",
    "HiddenStateEncoder",
    "ImaginedEnv",
    "LexicalEncoder",
    "LocalWriter",
    "RemoteWriter",
    "ReplayBuffer",
    "Retriever",
    "SentenceEncoder",
    "Wording",
    "Writer",
    "answer_rows",
    "audit",
    "lambda_cap",
]

_LATE = {
    "answer_rows": "fit",
    "HiddenStateEncoder": "local",
    "LocalWriter": "local",
    "RemoteWriter": "remote",
    "SentenceEncoder": "sentences",
}


def __getattr__(name: str) -> object:
    """Import a name of ``_LATE`` when it is first used."""
    if name in _LATE:
        return getattr(import_module(f"{__name__}.{_LATE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
