"""Search methods beside the core's."""
