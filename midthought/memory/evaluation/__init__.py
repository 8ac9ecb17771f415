"""How well a memory finds what it is asked for: questions, published sets, measures, and one run of all questions."""
