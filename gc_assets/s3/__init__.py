"""Clients, listings and rate limits for S3 and servers that speak its API.

Used by the state and by the S3 store. This package has buckets and keys, and no lakes.
"""
