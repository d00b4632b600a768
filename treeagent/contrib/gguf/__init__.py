"""Checkpoints from GGUF files."""
