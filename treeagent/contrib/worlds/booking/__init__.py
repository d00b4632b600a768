"""A restaurant-reservation site whose choices are final."""

from treeagent.contrib.worlds.booking.env import BookingEnv, BookingOptions

__all__ = ["BookingEnv", "BookingOptions"]
