"""The script of a job: `python -m gc_assets.job`, or this file as spark-submit's application."""

from gc_assets.job.run import main

main()
