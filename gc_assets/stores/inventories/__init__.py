"""Reports about a storage that take the place of its listing: finds the newest one, refuses what
must not be believed, and reads its rows as a listing would show them.

Knows reports and neither lakes nor policies. Which store the reports are about, and where they lie,
it asks through `SourceBucket` and `ReportFiles`.
"""
