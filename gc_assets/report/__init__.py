"""The HTML report of a run. It reads published tables and opens no lake."""
