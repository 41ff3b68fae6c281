"""``python -m dasktune._dashboard`` serves the database that its input names."""

from dasktune._dashboard.process import main

if __name__ == "__main__":
    main()
