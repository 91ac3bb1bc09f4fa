"""Trials: which layouts to time, and what their times teach."""
