"""What stands around the Python tool's code in its own process. Started as `python -I -S CAGE`, so it sees nothing else
of this library: `__main__` runs the code, `landlock` shuts the files, `seccomp` the network and other processes.
"""
