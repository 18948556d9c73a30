"""Tables that only lakeFS lakes have: staged objects and lifecycle rules."""
