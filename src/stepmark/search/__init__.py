"""Search with a process reward model: which solution to trust, and where to spend the next token."""
