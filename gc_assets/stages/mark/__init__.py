"""What is live: refs, commit graph, retention, decoding, live files."""
