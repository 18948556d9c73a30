"""Execution engine of the stages: sessions, tasks, table I/O, progress and run context."""
