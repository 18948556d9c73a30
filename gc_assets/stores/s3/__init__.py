"""Storages in buckets of S3 and compatible servers."""
