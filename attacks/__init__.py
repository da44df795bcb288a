"""Attacks on federated training, one file each, readable beside its paper."""
