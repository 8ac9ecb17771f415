"""Questions that a language model writes about episodes, each verified before it is kept."""
