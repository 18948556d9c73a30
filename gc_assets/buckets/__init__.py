"""Shared parts of the clients of object stores: their protocol, request budgets and retries.

Each client has its own package on top of this one, such as `s3`.
"""
