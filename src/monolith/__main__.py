"""``python -m monolith``: the same as ``monolith``, for launchers that start modules."""

from __future__ import annotations

from monolith.cli.main import main

if __name__ == "__main__":
    main()
