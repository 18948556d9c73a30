"""Storages on a local disk."""
