"""When the ends that a search has found are good enough to stop looking for better ones."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Enough:
    """When a search whose decision is "leaf" ends before its limits.

    The best end so far is the one with the greatest G + λ ℓ, where ℓ is the ``mean_logprob`` of its path. G_max is the
    greatest return that an episode can have. Ends at a limit of the environment do not count, because every end of the
    task ranks above them.
    """

    lowest: float
    highest: float
    """The range of the returns of an episode, in reward units; ``highest`` is G_max."""
    likelihood_weight: float = 0.0
    """λ, as in ``decide.best_path``."""
    least_gain: float = 0.0
    """Lowest expected gain for which a search goes on, in reward units."""

    def gains_too_little(self, best: float, share: float) -> bool:
        """Whether the rest of the limits is expected to gain less than ``least_gain``.

        Suppose that the best of all ends is equally likely to be found at any time. Then the rest of the limits finds
        it with probability 1 - s, where s is the share of the limits that is spent. It gains at most the difference
        between G_max and the best end so far. So the search ends when

            (1 - s) (G_max - max_{ends} (G + λ ℓ)) < least_gain

        Args:
            best: max (G + λ ℓ) of the ends so far; -∞ if there is none.
            share: s, less than 1.
        """
        return (1 - share) * max(self.highest - best, 0.0) < self.least_gain  # V may exceed G_max

    def is_good(self, best: float) -> bool:
        """Whether the best end is nearer to G_max than to a ``failure``.

        A search with a good end that has explored all likely calls does not try unlikely ones (``growth.reopen``),
        because these hardly ever lead to a better end."""
        return best > (self.failure + self.highest) / 2

    @property
    def failure(self) -> float:
        """The return of a failure: 0 if that is between ``lowest`` and G_max, otherwise ``lowest``."""
        return 0.0 if self.lowest <= 0.0 < self.highest else self.lowest
