"""What if: many problems planned at once, and what comes of them side by side."""

from __future__ import annotations
