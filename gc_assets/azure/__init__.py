"""The client of Azure Blob Storage: requests about containers and blobs."""
