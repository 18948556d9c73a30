"""The stages of a run and of an apply, with Spark and Arrow and without Dagster."""
