"""Run steps of a Dagster run as jobs of another service: requests, reports and their exchange."""
