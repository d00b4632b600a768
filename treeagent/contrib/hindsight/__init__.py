"""How much a step's outcome changes the policy."""
