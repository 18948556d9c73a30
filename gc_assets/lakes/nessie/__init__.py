"""The Nessie lake kind: the Iceberg tables and views of all refs of one server."""
