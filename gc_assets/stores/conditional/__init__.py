"""Code that all object stores with conditional requests share.

It is written against `buckets.protocol.ConditionalBucket`. Code that is specific to S3, Azure or
Google Cloud is in a package of its own.
"""
