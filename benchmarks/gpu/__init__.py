"""`python -m benchmarks gpu`: thirteen independent checks of this library on a GPU, with random weights in real shapes.

`command` starts one process that runs the checks (`worker`), and a new one if a check breaks it. Each check is a module
with a function `run(machine, report)`. docs/servers.md says what each of them means.
"""
