"""Answer questions from published tables. Nothing here decides what is deleted."""
