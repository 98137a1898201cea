"""``python -m tilewright``: the command ``tilewright`` where it is not on the path."""

from tilewright.cli.main import main

if __name__ == "__main__":
    main()
