"""Storages on a local disk, or on a network file system that is mounted on this machine."""
