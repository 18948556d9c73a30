"""The client for Google Cloud Storage, which the state and the GCS store use."""
