"""JSON over HTTP, hosts, keys, and a cache of responses."""
