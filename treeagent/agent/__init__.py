"""The agent: a language model as policy and value function, and the checkpoint in which they are stored."""
