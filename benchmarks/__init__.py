"""The same night done by us and by the peers, on lakes built once: `python -m benchmarks iceberg --size m --peer`.

`python -m benchmarks all` holds every figure that has a target against it.
"""
