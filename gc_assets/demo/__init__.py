"""Real sample lakes, and one night on them that explains itself."""
