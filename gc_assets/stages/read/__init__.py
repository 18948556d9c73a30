"""Read-only reports and queries about published tables, which never influence deletions."""
