"""Pools of model servers."""
