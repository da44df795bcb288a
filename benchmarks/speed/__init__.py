"""What the throughput program is made of: the machine's limits, and the table."""
