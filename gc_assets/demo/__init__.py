"""Create sample lakes with past histories, using the official libraries."""
