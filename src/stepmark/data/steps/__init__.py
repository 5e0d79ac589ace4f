"""A text is cut into steps, without losing a character."""
