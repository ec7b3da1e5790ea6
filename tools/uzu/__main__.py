"""`python -m uzu` is `uzu`."""

from uzu.cli import main

if __name__ == "__main__":
    main()
