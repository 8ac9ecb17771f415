"""Sandbox of the Python tool, in its own process. Started as `python -I -S FOLDER`, so it imports nothing else of this
library: `__main__` runs the code, `isolation` restricts files, the network and other processes.
"""
