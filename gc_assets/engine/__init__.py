"""Runs the work of the stages: sessions, tasks, table I/O, progress and the context of a run."""
