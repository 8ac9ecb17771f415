"""JSON over HTTP, hosts, keys."""
