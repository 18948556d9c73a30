"""The boxes of a night as Dagster assets, with their checks, partitions and sensors."""
