"""What one's own server could learn from one's own clients, and what stops it: the parts of
`python -m benchmarks.audit`."""
