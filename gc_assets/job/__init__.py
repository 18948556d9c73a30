"""The entry point of remote jobs. It runs the requested assets with the Spark of this process."""
