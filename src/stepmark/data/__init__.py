"""Rows in and out: files become solutions, and texts become steps."""
