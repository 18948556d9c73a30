"""Compute the live set of a lake: refs, commit graph, retention, decoding, live files."""
