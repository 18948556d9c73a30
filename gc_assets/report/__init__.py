"""A night as one HTML page. Reads published tables; opens no lake."""
