"""Shared parts of the stores whose requests accept conditions.

Lease, quarantine, listing, objects and probe are built on `buckets.protocol.ConditionalBucket`. The
package of a store contains what only that store has.
"""
