"""Inventory reports that replace the listing of a storage.

This package finds the newest report, rejects it if it is unusable, and reads its rows as a listing
would return them. It does not know lakes or policies. `SourceBucket` and `ReportFiles` connect it
to a store.
"""
