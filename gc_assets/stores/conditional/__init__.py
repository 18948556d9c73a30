"""Shared parts of the stores whose requests accept conditions.

Lease, quarantine, listing, objects and probe are built on `buckets.protocol.ConditionalBucket`.
Code that is specific to one store is in that store's package.
"""
