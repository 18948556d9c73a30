"""The environment in which stages run: Spark, tasks, table I/O, progress and the run context."""
