"""The setup package's module of this name: the public names of `midthought`, among them its engines and managers."""

from midthought.argument_names import public_name as __getattr__  # noqa: F401
