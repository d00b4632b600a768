"""The cost of a run, before it."""
