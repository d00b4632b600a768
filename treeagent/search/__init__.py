"""Tree search for language agents. Knows states, actions, visits and values; no model, no environment."""
