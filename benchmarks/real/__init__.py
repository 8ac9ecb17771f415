"""`python -m benchmarks real TASK`: a pretrained chat model learns a task, with figures before and after (`make real`).

`multiply` is the README's program with demonstrations first; `reverse_text` has no tool; `guess_the_number` has several turns;
`podcast` is the recipe, on a CPU with less training.
"""
