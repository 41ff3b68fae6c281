"""``python -m dasktune`` is the command ``dasktune``."""

from dasktune.cli import main

if __name__ == "__main__":
    main()
