"""The pages of results, made from result files alone: ``python -m benchmarks.pages``."""
