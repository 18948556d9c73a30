"""Requests to S3 and to servers that speak its API: who asks, where, how often again, and what an
answer means. Used by the state and by the store of S3. Knows buckets and keys, not what they hold.
"""
