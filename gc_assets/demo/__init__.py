"""Real sample lakes with histories that happened at chosen times."""
