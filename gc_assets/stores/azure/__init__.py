"""Containers of Azure Blob Storage as stores."""
