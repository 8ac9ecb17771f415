"""`python -m midthought`: the command line."""

from midthought.cli import main

if __name__ == "__main__":
    main()
