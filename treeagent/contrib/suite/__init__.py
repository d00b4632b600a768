"""Evaluation under disturbances."""
