"""What each system means by ref, commit, container and file. Formats only: no Spark, no Dagster, no
environment.
"""
