"""Rewards that a model, a rule, a budget or a fitted reward model gives."""
