"""Dagster resources, and what they need: Java, Spark sessions and Spark Connect servers."""
