"""Whether a record is a client's (membership inference, MIA), and whose it is (source inference,
SIA)."""
