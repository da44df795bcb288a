"""What is measured: each file asks one question, with a table of methods, a run, and its scores."""
