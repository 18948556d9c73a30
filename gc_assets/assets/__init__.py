"""Dagster assets of a run, with their checks, partitions and sensors."""
