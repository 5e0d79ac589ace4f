"""Labelling: judgements of steps."""
