"""The script of a job. Run `python -m gc_assets.job`, or submit this file with spark-submit."""

from gc_assets.definitions import build_definitions
from gc_assets.remote.run import main

main(build_definitions)
