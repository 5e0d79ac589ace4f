"""Station 4: labelled steps become a grader."""
