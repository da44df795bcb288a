"""Which records does a client have: all columns and labels, with nothing known but the schema."""
