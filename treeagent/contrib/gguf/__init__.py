"""Models from GGUF files."""
