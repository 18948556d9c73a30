"""What is garbage: the live filter, the inventory, the orphans with their reasons."""
