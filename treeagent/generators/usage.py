"""Counters of the cost of sampling, which every generator keeps. This module imports nothing heavy, so that a run's
metrics can import it."""

from dataclasses import dataclass


@dataclass(slots=True)
class Usage:
    """Tokens that went through the model."""

    encoded_tokens: int = 0
    """Prompt tokens fed to the model."""
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache."""
    generated_tokens: int = 0
    failed_requests: int = 0
    """Requests to a server that still failed after the last retry."""
    price: float = 0.0
    """Price of a server's tokens, by the prices in the configuration."""
