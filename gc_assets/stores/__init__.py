"""List, compare, quarantine, restore and purge the objects of a storage.

The package contains one protocol, and one implementation per kind of store. It works with keys and
identities and does not know lakes or policies. It never imports Spark or Dagster and never reads
the environment.
"""
