"""`python -m midthought.cli`: the `midthought` command."""

from midthought.cli import main

if __name__ == "__main__":
    main()
