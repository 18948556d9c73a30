"""Readers for the refs, commits, metadata objects and data files of each supported lake system.

This package does not use Spark, Dagster or the environment.
"""
