"""Grading: step scores, one number for a solution, the graded file and its report."""
