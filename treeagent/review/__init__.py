"""Review by people: a queue of what is most in doubt, and a page on this machine where they mark it."""
