"""What sampling has cost, counted by every generator. Imports nothing, so that a run's metrics can read it."""

from dataclasses import dataclass


@dataclass(slots=True)
class Usage:
    """Tokens that went through the model."""

    encoded_tokens: int = 0
    """Prompt tokens fed."""
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache."""
    generated_tokens: int = 0
    price: float = 0.0
    """What a server charged for them, by the prices of the configuration."""
