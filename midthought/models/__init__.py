"""Model folders: load, save, adapters, GGUF files, small models."""
