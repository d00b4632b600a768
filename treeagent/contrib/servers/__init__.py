"""Pools of model servers that may load new weights, and servers that give text alone."""
