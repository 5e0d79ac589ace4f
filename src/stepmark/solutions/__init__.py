"""Solutions: texts become steps, and files become solutions."""
