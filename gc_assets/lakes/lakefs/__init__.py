"""lakeFS repositories as a lake kind."""
