"""Measurements: each program writes ``results/NAME.json``, and ``benchmarks.pages`` makes the pages of them."""
