"""Clients, listings and errors of Google Cloud Storage.

Used by the state and by the GCS store. This package has buckets and keys, and no lakes.
"""
