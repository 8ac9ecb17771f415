"""Settings of `training` in the tests of a plan, unless a test names others."""

TRAINING = {
    "optimizer": "adamw",
    "offload_optimizer": False,
    "offload_reference": False,
    "gradient_checkpointing": False,
    "logits_mib": 64,
    "micro_batch_tokens": 16_384,
    "batch_size": 256,
}
