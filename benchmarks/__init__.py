"""Benchmarks: `python -m benchmarks.NAME [--quick]` runs both sides in one process and prints figures and aims."""
