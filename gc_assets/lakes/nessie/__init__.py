"""The Nessie lake kind: Iceberg tables and views in all refs of one server."""
