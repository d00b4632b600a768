"""Question answering by search: questions of one to three hops on a local corpus, after Search-R1 (Jin et al. 2025)."""

from treeagent.contrib.worlds.qa.env import QaEnv, QaOptions

__all__ = ["QaEnv", "QaOptions"]
