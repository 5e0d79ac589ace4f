"""Station 3: judgements of steps."""
