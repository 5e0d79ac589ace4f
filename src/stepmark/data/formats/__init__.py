"""Formats of step-labelled rows, one a file."""
