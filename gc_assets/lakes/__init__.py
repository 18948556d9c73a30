"""Readers of the formats of each system: refs, commits, containers and files.

No module of this package uses Spark, Dagster or the environment.
"""
