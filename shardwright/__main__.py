"""``python -m shardwright`` is ``shardwright``."""

from __future__ import annotations

from shardwright.cli import main

if __name__ == "__main__":
    main()
