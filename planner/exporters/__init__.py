"""Plans for other software: what it takes, and what it refuses."""
