"""Storages in containers of Azure Blob Storage."""
