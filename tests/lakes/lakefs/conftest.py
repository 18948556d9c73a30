"""Hypothesis looks for wrong answers, not for slow ones: a busy machine fails no test."""

from hypothesis import settings

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
