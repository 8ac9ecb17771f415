"""Tools that come with the library: arithmetic, answers from a source, steps of an environment, Python code."""
