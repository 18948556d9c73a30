"""The state of gc-assets, with its schemas, files, parts and receipts, without Spark or Dagster."""
