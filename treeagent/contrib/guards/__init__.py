"""Wrappers of environments: refuse, approve or disturb calls."""
