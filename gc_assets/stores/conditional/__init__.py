"""Code that all object stores with conditional requests share.

It only uses the protocol `buckets.protocol.ConditionalBucket`. Code that is specific to S3, Azure
or Google Cloud is in a package of its own.
"""
