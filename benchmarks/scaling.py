"""Part `scaling`: the engine alone from 1 to 256 sequences and with prompts of 100 to 4,000 tokens, without tools."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.bare import BareLoop
from benchmarks.options import Options
from benchmarks.reciter import Reciter
from benchmarks.systems import BareSampling, OurSampling, make_engine
from benchmarks.table import Row
from benchmarks.timing import System, Timings, compare
from benchmarks.work import Shape, Work

PART = "scaling"
NUM_SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
PROMPTS = (100, 300, 1000, 2000, 4000)
NUM_SEQUENCES_OF_PROMPTS = 16
NUM_SPAN = 48
NUM_SPANS = 2


def measure(options: Options) -> Iterator[Row]:
    counts, prompts = ((1, 4), (100,)) if options.quick else (NUM_SEQUENCES, PROMPTS)
    for size in options.sizes:
        reciter = options.reciter(size, num_span=NUM_SPAN)
        yield from over_sequences(options, size, reciter, counts)
        yield from over_prompts(options, size, reciter, prompts)


def over_sequences(options: Options, size: str, reciter: Reciter, counts: tuple[int, ...]) -> Iterator[Row]:
    """Prompts of 200 tokens; tokens/s against the bare loop at equal batch, and against one sequence."""
    shapes = {str(count): Shape(num_episodes=count, num_spans=NUM_SPANS, num_span=NUM_SPAN) for count in counts}
    systems = contestants(reciter, shapes)
    timings = compare(systems, lambda name, seed: Work(reciter, shapes[_key(name)], seed), options.num_rounds)
    fewest, _ = _names(str(counts[0]))
    for key, shape in shapes.items():
        yield _against_bare(timings, key, shape.describe(size))
        ours, _ = _names(key)
        yield Row(
            part=PART,
            setting=shape.describe(size),
            figure=f"tokens/s against {counts[0]} sequence",
            value=timings.ratio(fewest, ours).times(shape.num_episodes / counts[0]),
            seconds=timings.medians(ours, fewest),
        )


def over_prompts(options: Options, size: str, reciter: Reciter, prompts: tuple[int, ...]) -> Iterator[Row]:
    """16 sequences; tokens/s, the prompt's time included, against the bare loop."""
    shapes = {
        str(num_prompt): Shape(
            num_episodes=NUM_SEQUENCES_OF_PROMPTS, num_prompt=num_prompt, num_spans=NUM_SPANS, num_span=NUM_SPAN
        )
        for num_prompt in prompts
    }
    systems = contestants(reciter, shapes)
    timings = compare(systems, lambda name, seed: Work(reciter, shapes[_key(name)], seed), options.num_rounds)
    for key, shape in shapes.items():
        yield _against_bare(timings, key, shape.describe(size))


def contestants(reciter: Reciter, shapes: dict[str, Shape]) -> dict[str, System]:
    """Our engine and the bare loop for every shape, in pairs."""
    systems: dict[str, System] = {}
    for key, shape in shapes.items():
        ours, bare = _names(key)
        systems[ours] = OurSampling(reciter, make_engine(reciter, shape))
        systems[bare] = BareSampling(reciter, BareLoop(reciter.model, shape.num_episodes, shape.length))
    return systems


def _against_bare(timings: Timings, key: str, setting: str) -> Row:
    ours, bare = _names(key)
    return Row(
        part=PART,
        setting=setting,
        figure="tokens/s against the bare loop",
        value=timings.ratio(bare, ours),
        seconds=timings.medians(ours, bare),
    )


def _names(key: str) -> tuple[str, str]:
    return f"engine {key}", f"bare {key}"


def _key(name: str) -> str:
    return name.rpartition(" ")[2]
