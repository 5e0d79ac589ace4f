"""Traces of agents as tools write them, one format a file."""
