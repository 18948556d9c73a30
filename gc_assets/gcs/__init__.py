"""Clients, listings and errors of Google Cloud Storage.

Used by the state and by the GCS store. This package works with buckets and keys and does not know
lakes.
"""
