"""Buckets of S3 and S3-compatible servers as stores."""
