"""What an adversary learns of one column of a client's records (attribute inference, AIA)."""
