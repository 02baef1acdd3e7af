"""`python -m lipspline` is the command line."""

from lipspline.cli import main

if __name__ == "__main__":
    main()
