"""Create sample lakes with the official libraries, and with histories at given times."""
