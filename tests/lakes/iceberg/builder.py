"""Real Iceberg lakes for tests: the builder that the demo uses too."""

from gc_assets.demo.iceberg_builder import BY_PART, SCHEMA, LakeBuilder, TableBuilder, clock_at

__all__ = ["BY_PART", "SCHEMA", "LakeBuilder", "TableBuilder", "clock_at"]
