"""Files: written whole or not at all, folders that may be replaced, digests."""
