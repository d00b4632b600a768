"""A world model: a language model that simulates the environment (DreamGym, section 4.1).

``experience.ExperienceModel`` imagines transitions. ``replay.ReplayBuffer`` is its memory of real steps; a prompt shows
the most similar ones. ``wording.Wording`` writes its prompts and parses its answers, ``language`` trains and asks it.
``fidelity.audit`` measures how reliable it is, and ``lambda_cap`` turns this into a share of imagined experience.
"""
