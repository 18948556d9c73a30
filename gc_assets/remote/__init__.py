"""Run the steps of a Dagster run as Spark jobs on other services, and collect their reports."""
