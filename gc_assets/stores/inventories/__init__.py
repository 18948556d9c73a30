"""Inventory reports (lists of all objects in a bucket), which replace a listing.

This package finds the newest report, rejects it if it is unusable, and converts its rows to those
that a listing would return. It accesses stores only through `ConditionalBucket` and `ReportFiles`.
"""
