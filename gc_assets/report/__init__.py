"""The HTML report and other exports of a run, which are computed from published tables alone."""
