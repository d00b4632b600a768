"""Wrappers of environments that refuse calls, ask a person, bound what is read, or make the environment harder."""
