"""The lake kind of lakeFS repositories."""
