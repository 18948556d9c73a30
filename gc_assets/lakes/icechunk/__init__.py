"""The Icechunk lake kind: repositories with spec version 1 or 2."""
