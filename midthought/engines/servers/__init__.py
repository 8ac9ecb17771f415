"""Model servers as engines: starting them, requests, weight updates. Depends on HTTP and token ids only."""
