"""Sample lakes with real libraries and histories at chosen times."""
