"""Real sample lakes, and one night on them that explains itself."""

from gc_assets.demo.night import run_demo
from gc_assets.demo.sample import ensure_demo

__all__ = ["ensure_demo", "run_demo"]
