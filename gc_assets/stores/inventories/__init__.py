"""Inventory reports, which can be read instead of listing a large storage.

This package finds the newest report, rejects it if it is unusable, and converts its rows to the
form that a listing would return. It accesses stores only through `ConditionalBucket` and
`ReportFiles`.
"""
