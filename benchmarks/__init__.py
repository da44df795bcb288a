"""The benchmark: `python -m benchmarks.sweep`, `.report` and `.throughput`."""
