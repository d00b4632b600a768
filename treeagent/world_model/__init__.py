"""A world model: a language model that simulates the environment (DreamGym, section 4.1).

``ExperienceModel`` imagines transitions. ``ReplayBuffer`` is its memory of real steps; a prompt shows the most similar
ones. ``Wording`` writes its prompts and parses its answers. ``audit`` measures how reliable the model is, and
``lambda_cap`` turns this into the largest share of imagined experience to train on.

The other modules load torch or need an extra, so they are not imported here: ``fit`` makes training rows from real
steps (equation 5), ``local`` and ``remote`` contain the language models that answer.
"""

from treeagent.world_model.experience import ExperienceModel, Retriever, Writer
from treeagent.world_model.fidelity import Fidelity, Figures, audit, lambda_cap
from treeagent.world_model.replay import ReplayBuffer
from treeagent.world_model.transition import Experience
from treeagent.world_model.wording import Answer, Wording

__all__ = [
    "Answer",
    "Experience",
    "ExperienceModel",
    "Fidelity",
    "Figures",
    "ReplayBuffer",
    "Retriever",
    "Wording",
    "Writer",
    "audit",
    "lambda_cap",
]
