"""Token ids and log-probabilities out of a language model, and conversations into token ids."""
