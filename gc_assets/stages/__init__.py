"""What a night and an apply do, over Spark and Arrow. Knows no Dagster."""
