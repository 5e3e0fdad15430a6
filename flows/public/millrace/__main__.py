"""The `millrace` command as `python -m millrace`."""

from millrace.cli import main

if __name__ == "__main__":
    main()
