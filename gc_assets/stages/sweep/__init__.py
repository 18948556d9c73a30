"""Compare the inventory of a storage with the live sets of all lakes."""
