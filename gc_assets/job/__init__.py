"""What a job elsewhere runs: the assets that its Dagster asks for, on the Spark that started it."""
