"""lakeFS-only tables: staged objects and lifecycle rules."""
