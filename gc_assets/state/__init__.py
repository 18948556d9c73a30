"""The collector's own tables: schemas, files, parts, receipts. Knows no lake, no Spark and no
Dagster.
"""
