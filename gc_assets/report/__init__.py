"""The HTML report of a run, which is created from published tables alone."""
