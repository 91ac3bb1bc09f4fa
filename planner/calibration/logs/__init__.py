"""Training logs of other software, read into one form; nothing in them is ever executed."""
