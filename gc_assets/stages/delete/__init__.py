"""Plans and their execution: expire, quarantine, purge, restore."""
