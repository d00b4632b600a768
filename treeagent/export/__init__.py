"""Views of a run's trees as a Hugging Face dataset, so that people can train on them elsewhere."""
