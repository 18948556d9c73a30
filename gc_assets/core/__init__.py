"""Small pure modules that all other packages use: no Spark, no Dagster, no environment."""
