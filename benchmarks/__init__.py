"""The benchmark: `python -m benchmarks.sweep`, `.audit`, `.report`, `.compare`, `.throughput`."""

from jaxfl._extras import of_extra

with of_extra("bench"):
    import jinja2  # noqa: F401 - said at once, of whichever command
    import tyro  # noqa: F401
