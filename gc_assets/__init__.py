"""Garbage collection of versioned data lakes: which files no retained version needs, why, and how
to remove them safely.
"""

__version__ = "0.3.0"
