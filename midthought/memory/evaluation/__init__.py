"""How well a memory finds what it is asked for: questions, measures, and one run of all questions."""
