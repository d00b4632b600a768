"""Adapters that turn tools and environments of other projects into an ``Env``."""
