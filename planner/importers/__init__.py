"""Files of other software, read into our nouns; nothing of them is ever executed."""
