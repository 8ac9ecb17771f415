"""Engines: token ids in, sampled token ids and log-probabilities out. Local engine, in-process vLLM, servers, scripted."""
