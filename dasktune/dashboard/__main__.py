"""``python -m dasktune.dashboard`` serves the database that its input names."""

from dasktune.dashboard.process import main

if __name__ == "__main__":
    main()
