"""The `rowmill` command as `python -m rowmill`."""

from rowmill.cli import main

if __name__ == "__main__":
    main()
