"""The same night done by us and by the peers, on lakes built once: `python -m benchmarks iceberg --size m --peer`."""
