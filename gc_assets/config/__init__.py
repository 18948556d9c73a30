"""`lakes.yaml`: its models, its text, and how the file is read."""
