"""Readers for each system's refs, commits, containers and files.

This package does not use Spark, Dagster or the environment.
"""
