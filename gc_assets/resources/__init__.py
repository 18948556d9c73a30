"""Dagster resources and the environments they open: Java, Spark sessions, Spark Connect servers."""
