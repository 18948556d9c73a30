"""Storages in buckets of Google Cloud Storage."""
