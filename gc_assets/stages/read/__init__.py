"""Read-only reports and queries over published tables, without influence on deletions."""
