"""Time of an iteration by part, in seconds, from the work to compute, read and send: a lower bound and an expected value.

Lower bounds use the GPU's data sheet; expected values use `mfu` and `bandwidth_share` of it. Not included: tools and
environments, communication between GPUs of one engine, waiting for the longest response, start-up.
"""

from __future__ import annotations

from dataclasses import dataclass

from midthought.plan.activations import FLOAT
from midthought.plan.memory import Memory

GIGA = 1e9
TERA = 1e12
HOST_LINK_GBS, HOST_MEMORY_GBS = 50.0, 200.0
"""GB/s between a GPU and main memory (PCIe 5, 16 lanes, of 64 nominal) and of main memory (a server with 8 channels DDR5, of 300
nominal), per GPU. Assumptions."""
CPU_SPEED = {"gpu_tflops": 0.5, "gpu_bandwidth_gbs": 40.0}
"""A laptop's CPU, as the data of a GPU. An assumption, from which only the number of test questions follows."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of an iteration."""

    name: str
    floor: float
    """Seconds at the machine's full speed."""
    expected: float
    bound: str
    """Bottleneck: `compute`, `bandwidth` of the memory, `main memory`, or the `link` between GPUs."""


@dataclass(frozen=True)
class Timing:
    """Seconds of an iteration of `batch_size` episodes.

    A token costs `2 P + 2 L Q s` operations in a forward pass: P the parameters that it is multiplied by, and attention over
    half of its sequence of s tokens on average, Q the width of the queries, L the layers. A backward pass costs twice as much,
    or as much if the weights are frozen. Sources: Kaplan et al. 2020 (arXiv 2001.08361), section 2.1; Chowdhery et
    al. 2022 (arXiv 2204.02311), appendix B. float32 counts at half the speed of bfloat16 (TF32, if enabled).
    """

    memory: Memory

    @property
    def parts(self) -> list[Part]:
        found = [self.prompts, self.decoding, self.scoring, self.updating, self.stepping, self.syncing]
        return [part for part in found if part is not None]

    @property
    def floor(self) -> float:
        return sum(part.floor for part in self.parts)

    @property
    def expected(self) -> float:
        return sum(part.expected for part in self.parts)

    # -- sampling ------------------------------------------------------------------------------------------------------

    @property
    def prompts(self) -> Part:
        """Prefill: every group's prompt is computed once."""
        settings = self.memory.settings
        num_tokens = settings.batch_size / settings.group_size * settings.prompt_tokens
        operations = num_tokens * self._forward(settings.prompt_tokens) / settings.sampling_gpus
        return self._computed("prefill", operations)

    @property
    def decoding(self) -> Part:
        """Each step of an engine samples one token per sequence. The step reads all weights once and every sequence's keys and
        values, and multiplies; the slower of reading and multiplying counts.

            bytes = b P + n c kv      operations = n (2 P + 4 L Q c)

        n sequences with c tokens each on average, kv bytes of keys and values per token. With experts, P of the bytes are the
        weights that n tokens choose, and P of the operations the ones that one token chooses. Source: Pope et al. 2022 (arXiv
        2211.05102), section 2.
        """
        memory, settings, shape = self.memory, self.memory.settings, self.memory.shape
        response = settings.mean_tokens - settings.prompt_tokens
        context = settings.prompt_tokens + response / 2
        of_engine = settings.batch_size / settings.num_engines
        at_once = min(max(1.0, memory.num_sequences), of_engine)
        num_steps = response * of_engine / at_once
        weights = memory.width * shape.parameters_read(at_once) / settings.tensor_parallel
        read = num_steps * (weights + at_once * memory.kv_bytes_of_sequence(context))
        operations = 2 * shape.computing_parameters + 4 * shape.num_layers * shape.query_size * context
        computed = self._computed("decoding", num_steps * at_once * operations / settings.tensor_parallel)
        floor = read / (settings.machine.bandwidth_gbs * GIGA)
        is_compute_bound = computed.expected > floor / settings.bandwidth_share
        return computed if is_compute_bound else Part("decoding", floor, floor / settings.bandwidth_share, "bandwidth")

    # -- learning ------------------------------------------------------------------------------------------------------

    @property
    def scoring(self) -> Part:
        """A forward pass of the policy, of a critic and of a reference."""
        settings = self.memory.settings
        num_models = 1 + (settings.critic == "separate") + settings.reference
        return self._passes("log-probabilities and values", num_models, num_models, 1)

    @property
    def updating(self) -> Part:
        """Forward and backward passes of policy and critic; with gradient checkpointing the layers run forward twice."""
        settings = self.memory.settings
        again = 1 if settings.gradient_checkpointing else 0
        policy = (2 if settings.lora_rank else 3) + again
        critic = (3 + again) if settings.critic == "separate" else 0
        gathers = (2 + (settings.lora_rank == 0)) + (3 if critic else 0)
        return self._passes("forward and backward passes", policy + critic, gathers, settings.ppo_epochs)

    @property
    def stepping(self) -> Part:
        """AdamW reads weights, gradients and both moments, and writes all but the gradients.

        With `offload_optimizer` it does so in main memory, after the gradients were sent there and before the weights are sent
        back; main memory is slower than the link, so it is the bottleneck.
        """
        memory, settings = self.memory, self.memory.settings
        whole = memory.whole
        learning = whole.gradients + whole.moments + (whole.masters or whole.gradients)
        moved = 2 * learning - whole.gradients + (whole.weights if whole.masters else 0)
        num_steps = settings.ppo_epochs * max(1, settings.batch_size // settings.mini_batch_size)
        if settings.offload_optimizer:
            sent = whole.gradients + (whole.weights if whole.masters else whole.gradients)
            floor = num_steps * (sent / (HOST_LINK_GBS * GIGA) + moved / (HOST_MEMORY_GBS * GIGA))
            return Part("optimizer steps", floor, floor / settings.bandwidth_share, "main memory")
        floor = num_steps * moved / (settings.machine.bandwidth_gbs * GIGA)
        return Part("optimizer steps", floor, floor / settings.bandwidth_share, "bandwidth")

    @property
    def syncing(self) -> Part | None:
        """The trained weights, or the adapters, are sent to every engine once."""
        memory, settings = self.memory, self.memory.settings
        if not settings.engine_has_copy:
            return None
        sent = FLOAT * memory.adapter_parameters if settings.lora_rank else memory.width * memory.shape.parameters
        seconds = sent / (self._link(settings.gpus) * GIGA)
        return Part("weights to the engine", seconds, seconds / settings.bandwidth_share, "link")

    # -- pieces --------------------------------------------------------------------------------------------------------

    def _forward(self, length: float) -> float:
        """Returns the operations per token of a sequence of this length."""
        shape = self.memory.shape
        return 2 * shape.computing_parameters + 2 * shape.num_layers * shape.query_size * length

    def _passes(self, name: str, num_forwards: float, num_gathers: int, num_epochs: int) -> Part:
        """`num_forwards`: operations of a pass relative to a forward pass. `num_gathers`: how often a pass sends (N - 1) / N of
        all weights (or gradients) over the link (Rajbhandari et al. 2020, section 7.2). Sending overlaps with computing."""
        memory, settings = self.memory, self.memory.settings
        num_tokens = settings.batch_size * settings.mean_tokens / settings.learning_gpus
        computed = self._computed(name, num_epochs * num_tokens * num_forwards * self._forward(settings.mean_tokens))
        shards = settings.num_shards
        if shards == 1:
            return computed
        num_passes = max(1.0, num_tokens / settings.tokens_of_pass)
        sent = num_epochs * num_passes * num_gathers * memory.width * memory.shape.parameters * (shards - 1) / shards
        floor = sent / (self._link(shards) * GIGA)
        if floor / settings.bandwidth_share <= computed.expected:
            return computed
        return Part(name, max(floor, computed.floor), floor / settings.bandwidth_share, "link")

    def _computed(self, name: str, operations: float) -> Part:
        settings = self.memory.settings
        speed = settings.machine.tflops * TERA / (2 if settings.dtype == "float32" else 1)
        floor = operations / speed
        return Part(name, floor, floor / settings.mfu, "compute")

    def _link(self, num_gpus: int) -> float:
        """Returns the bandwidth between `num_gpus` GPUs in GB/s."""
        settings = self.memory.settings
        return settings.machine.link_gbs if num_gpus <= settings.gpus_per_node else settings.node_link_gbs


def num_episodes(memory: Memory, seconds: float) -> int:
    """Returns how many episodes of the maximum length the engine plays in so many seconds, as expected."""
    settings = memory.settings
    if settings.device == "cpu":
        memory = Memory(memory.shape, settings.model_copy(update=CPU_SPEED))
    timing = Timing(memory)
    return int(seconds * settings.batch_size / (timing.prompts.expected + timing.decoding.expected))
