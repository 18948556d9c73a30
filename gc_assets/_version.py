"""The version of this release, in a module of its own so that every package can import it."""

__version__ = "0.4.0"
