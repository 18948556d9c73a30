"""What the clients of all object stores share: their protocol, request budgets and retries.

One package per client is above this one: `s3`, and those of further object stores.
"""
