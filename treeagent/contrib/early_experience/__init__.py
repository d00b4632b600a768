"""Rows from the agent's own first steps."""
