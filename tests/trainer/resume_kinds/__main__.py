"""The command ``python -m tests.trainer.resume_kinds``; forked processes import this file, too."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from tests.trainer.resume_kinds.command import main

    sys.exit(main())
