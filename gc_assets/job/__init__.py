"""The entry point of remote jobs: run the requested assets with the Spark that started the process."""
