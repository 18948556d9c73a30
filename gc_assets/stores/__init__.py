"""List, compare, quarantine, restore and purge the objects of a storage.

One protocol, and one implementation per kind of store. This package has keys and identities, and no
lakes or policies. It never imports Spark or Dagster and never reads the environment.
"""
