"""Benchmarks: each program writes ``results/NAME.json``, and ``benchmarks.pages`` makes the results pages from these
files."""
