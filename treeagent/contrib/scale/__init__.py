"""Ray, several processes a training, sharded models."""
