"""What a run found, for people: tables and trees on the terminal, one HTML page. Reads, never computes anew."""
