"""The Iceberg lake kind: all tables of one pyiceberg catalog."""
