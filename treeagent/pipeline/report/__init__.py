"""Shows what a run found, on the terminal and on HTML pages. It reads stored results and repeats no part of a run."""
