"""Who holds what: each scenario draws clients, trains them, and says what an adversary may know."""
