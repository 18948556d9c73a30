"""What stages need to run: Spark sessions, tasks, table I/O, progress and the run context."""
