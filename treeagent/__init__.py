"""treeagent: search trees, a learned world model and preference optimisation for language agents.

Nothing is imported here, so that ``import treeagent.search`` stays light.
"""
