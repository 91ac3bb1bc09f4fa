"""Learning a cluster's and a software stack's numbers from a user's own runs."""
