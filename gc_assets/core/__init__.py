"""Small, pure modules for all other packages.

They do not depend on Spark, Dagster or environment variables.
"""
