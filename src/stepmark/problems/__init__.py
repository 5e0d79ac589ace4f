"""Station 1: problems and where they come from."""
