"""How the pipeline grows: `python -m benchmarks.scale`."""
