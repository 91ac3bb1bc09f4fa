"""The checks and runners behind ``make check`` and ``make test``."""
