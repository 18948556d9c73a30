"""The tables of gc-assets itself: schemas, files, parts and receipts. No lakes, Spark or Dagster."""
