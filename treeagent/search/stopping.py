"""Stops a search early when the rest of its limits is not worth spending."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeastGain:
    """Ends a search with the decision "leaf" once the rest of its limits is expected to gain less than ``least``.

    Let s be the share of the limits that is spent. If the best of all ends is equally likely to be found at any time,
    it is still to be found with probability 1 - s. It then gains at most the difference between the greatest return
    G_max and the best end so far. The search therefore ends when

        (1 - s) (G_max - max_{ends} (G + λ log π(path))) < least

    Ends at a limit of the environment do not count, because every end of the task ranks above them.
    """

    least: float
    """Lowest expected gain for which the search goes on, in reward units."""
    highest: float
    """G_max: the greatest return that an episode can have."""
    likelihood_weight: float
    """λ, as in ``decide.best_path``."""

    def reached(self, best: float, share: float) -> bool:
        """Whether the search should end.

        Args:
            best: max (G + λ log π) of the ends so far; -∞ if there is none.
            share: s, less than 1.
        """
        return (1 - share) * max(self.highest - best, 0.0) < self.least  # V may exceed G_max
