"""Tells people what happens, by the targets of `notify`. Knows no state, no Spark and no Dagster."""
