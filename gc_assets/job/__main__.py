"""The script of a job: `python -m gc_assets.job`, or this file as the application of spark-submit."""

from gc_assets.definitions import build_definitions
from gc_assets.remote.run import main

main(build_definitions)
