"""The command line `gc-assets`."""
