"""Training in stages of difficulty."""
