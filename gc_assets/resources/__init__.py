"""Dagster resources and their dependencies: Java, Spark sessions and Spark Connect servers."""
