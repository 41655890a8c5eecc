"""Benchmarks: each makes its own input from a seed, checks its result, then reports times."""
