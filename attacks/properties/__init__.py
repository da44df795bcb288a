"""Which clients have a property, seen through secure aggregation (property inference)."""
