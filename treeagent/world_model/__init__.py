"""A world model: a language model that plays the environment (DreamGym, section 4.1).

``ExperienceModel`` imagines transitions; ``ReplayBuffer`` is its memory of real steps, of which a prompt shows the most
similar ones; ``Wording`` writes its prompts and reads its answers; ``audit`` measures how far it can be trusted, and
``lambda_cap`` which share of imagined experience that allows. ``ImaginedEnv`` lets anything that takes an environment
take a world model.

The modules beside them load torch or need an extra: ``fit`` makes training rows of real steps (equation 5), ``local``
and ``remote`` have the language models that answer, ``sentences`` another encoder.
"""

from treeagent.world_model.encoder import Encoder, LexicalEncoder
from treeagent.world_model.environment import ImaginedEnv
from treeagent.world_model.experience import ExperienceModel, Retriever, Writer
from treeagent.world_model.fidelity import Fidelity, Figures, audit, lambda_cap
from treeagent.world_model.replay import ReplayBuffer
from treeagent.world_model.transition import Experience
from treeagent.world_model.wording import Answer, Wording

__all__ = [
    "Answer",
    "Encoder",
    "Experience",
    "ExperienceModel",
    "Fidelity",
    "Figures",
    "ImaginedEnv",
    "LexicalEncoder",
    "ReplayBuffer",
    "Retriever",
    "Wording",
    "Writer",
    "audit",
    "lambda_cap",
]
