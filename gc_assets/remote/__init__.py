"""Run the steps of a Dagster run as jobs on other services, and collect their reports."""
