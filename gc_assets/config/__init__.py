"""The configuration file `lakes.yaml`: its models, and how it is parsed and validated."""
