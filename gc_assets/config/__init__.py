"""Models and parser for `lakes.yaml`."""
