"""What is a user's: which anonymous updates (linkability), and how its records look (user-level
inversion)."""
