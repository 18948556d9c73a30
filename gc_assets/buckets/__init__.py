"""Code that the clients of all object stores share: their protocol, request budgets and retries.

The clients themselves are in packages such as `gc_assets.s3`.
"""
