"""Lake kind for Icechunk repositories with spec version 1 or 2."""
