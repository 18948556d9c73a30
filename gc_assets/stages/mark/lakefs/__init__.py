"""What only lakeFS has: staging areas, and lifecycle rules over objects."""
