"""Lake kind for Icechunk repositories with spec version 1."""
