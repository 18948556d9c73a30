"""The models of `lakes.yaml`, and its parser."""
