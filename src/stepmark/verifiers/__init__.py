"""Where a solution says its answer, and whether that is the reference."""
