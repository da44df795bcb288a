"""The machinery of a benchmark: jobs, engines, store, report. It knows no attack."""
