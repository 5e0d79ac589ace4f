"""Training of process reward models on labelled steps."""
