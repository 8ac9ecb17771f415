"""The local engine: a scheduler, a KV cache and runners for any Hugging Face causal LM, over the weights that train."""
