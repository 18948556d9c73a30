"""The client for S3 and compatible servers, which the state and the S3 store use."""
