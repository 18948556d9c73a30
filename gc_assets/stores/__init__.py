"""List, compare, quarantine, restore and purge the objects of a storage; one protocol, one
implementation per kind of store.

Knows keys and identities, nothing of lakes, policies or why an object is garbage. Never imports
Spark or Dagster, never reads the environment.
"""
