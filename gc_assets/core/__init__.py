"""Small pure ideas that everything else stands on: no Spark, no Dagster, no environment."""
