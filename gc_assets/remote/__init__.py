"""Run steps of a Dagster run as jobs on another service, exchanging requests and reports."""
