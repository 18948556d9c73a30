"""The HTML report of a run. It is created from published tables, without opening lakes."""
