"""Benchmark of the joiner."""
