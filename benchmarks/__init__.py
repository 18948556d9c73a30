"""Compare runs of gc-assets with runs of its peers, on the same lakes.

`python -m benchmarks iceberg --size m --peer` compares one lake. `python -m benchmarks all`
compares every figure with its target.
"""
