"""The `rowmill` command as `python -m rowmill`."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        sys.path.pop(0)  # the current folder: a module there would hide one of ours, or stand in for a missing one
    from rowmill.cli import main

    main()
