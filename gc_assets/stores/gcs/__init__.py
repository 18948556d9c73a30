"""Buckets of Google Cloud Storage as storages."""
