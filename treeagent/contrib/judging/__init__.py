"""Rewards beside the environment's own: a judge, a fitted reward model, a cascade of both, weighted parts, budgets."""
