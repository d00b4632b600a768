"""When the rest of a search's limits cannot pay any more."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeastGain:
    """Ends a search whose decision is "leaf" once what is left of its limits is expected to gain less than ``least``.

    Let s be the share of the limits that is spent. If the best of all ends is as likely found at one time as at
    another, it is still to be found with probability 1 - s. It then gains at most what the best end so far is below the
    greatest return G_max, so that the search ends when

        (1 - s) (G_max - max_{ends} (G + λ log π(path))) < least

    Ends at a limit of the environment do not count, since every end of the task ranks above them.
    """

    least: float
    """In reward units."""
    highest: float
    """G_max."""
    likelihood_weight: float
    """λ, as in ``decide.best_path``."""

    def reached(self, best: float, share: float) -> bool:
        """Whether a search ends.

        Args:
            best: max (G + λ log π) of the ends so far; -∞ where there is none.
            share: s, less than 1.
        """
        return (1 - share) * max(self.highest - best, 0.0) < self.least  # a V of another range may exceed G_max
