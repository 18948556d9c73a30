"""Access to storages: listing, comparing, quarantining, restoring and purging their objects.

There is one implementation of the protocol `Store` for each kind of store. This package works with
keys of objects and their identities (such as etags), and is independent of lakes and policies. It
must not import Spark or Dagster, and must not read the environment.
"""
