"""vLLM without a server, on this machine. vLLM itself is imported only when an engine is created."""
