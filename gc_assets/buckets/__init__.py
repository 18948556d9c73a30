"""Shared parts of the clients of object stores: their protocol, request budgets and retries.

One package per client is above this one: `s3`, and those of further object stores.
"""
