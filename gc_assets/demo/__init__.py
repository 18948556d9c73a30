"""Create sample lakes with the official libraries, with histories that lie in the past."""
