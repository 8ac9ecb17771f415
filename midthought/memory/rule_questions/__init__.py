"""Questions that a listener might ask, written by rules from what speakers say, without a language model."""
