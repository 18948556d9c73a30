"""Storages on a local disk or a mounted network file system."""
