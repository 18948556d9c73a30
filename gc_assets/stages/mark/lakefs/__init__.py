"""Compute the tables that only lakeFS has: staged objects, lifecycle rules."""
