"""Added to the worker of an in-process vLLM (`worker_extension_cls`): loads weights from memory that processes share."""

from __future__ import annotations

from typing import Any

from midthought.engines.weight_sync.shared_tensors import Manifest, read_shared_tensors


class WeightReceiver:
    """Mixed into vLLM's `Worker`, whose `collective_rpc` calls the method."""

    reload_weights: Any
    """vLLM's own method."""

    def load_shared_weights(self, manifest: Manifest) -> None:
        """Replaces the weights. The tensors of `SharedTensors.manifest` have the names of a Hugging Face checkpoint."""
        import torch

        self.reload_weights(weights_iterator=read_shared_tensors(manifest), is_checkpoint_format=True)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.ipc_collect()
