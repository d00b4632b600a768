"""Exports views of a run's trees as a Hugging Face dataset, and trees as traces, for use with other tools."""
