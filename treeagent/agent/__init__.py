"""The agent: a policy and a value function on a language model, a critic, and the checkpoint that holds them."""
