"""What would a client's own model be (local model reconstruction, LMRA), and what does such a model
give away."""
