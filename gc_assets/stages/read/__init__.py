"""Read-only reports and queries about published tables. They never influence deletions."""
