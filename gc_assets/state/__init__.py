"""Tables owned by gc-assets: schemas, files, parts and receipts. Imports no Spark or Dagster."""
