"""Clients, listings and rate limits for S3 and S3-compatible servers.

Used by the state and by the S3 store. This package works with buckets and keys and does not know
lakes.
"""
