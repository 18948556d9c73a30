"""Icechunk repositories of spec v1 as a lake kind."""
