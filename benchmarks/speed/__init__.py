"""What the throughput program is made of: specimens of every experiment, the machine's limits, and
the table."""
