"""Inventory reports that replace the listing of a storage.

This package finds the newest report, refuses an unusable one, and reads its rows as a listing would
return them. It has no lakes and no policies. `SourceBucket` and `ReportFiles` connect it to a
store.
"""
