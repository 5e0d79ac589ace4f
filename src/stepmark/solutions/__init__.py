"""Station 2: texts become steps, and files become solutions."""
