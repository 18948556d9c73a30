"""Small pure modules used by all other packages, without Spark, Dagster or the environment."""
