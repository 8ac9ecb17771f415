"""Train a model to search your own documents: build a memory, make questions about it, train with the search tool.

python examples/search_documents.py                        # tiny model, CPU, seconds
python examples/search_documents.py --model Qwen/Qwen3-0.6B --documents DIR --iterations 200

Needs the extra `memory`. DIR holds transcripts (Markdown, text, JSON, SRT, VTT: docs/memory.md); by default two short ones are
written to a temporary folder. The questions quote a passage and ask for its speaker or episode.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from options import example_parser, make_config, print_rewards

from midthought import Trainer
from midthought.memory.build import build_memory
from midthought.memory.questions import QuestionPlan, make_questions
from midthought.memory.store import MemoryStore
from midthought.memory.tool import MemoryRetrievalTool

DOCUMENTS = {
    "tide_clock.md": "# The Tide Clock\n\n"
    "**Ann:** The clock in our kitchen ran eleven minutes fast and nobody dared to correct it at all.\n\n"
    "**Bob:** I wind the thing every third day since my brother fell off the ladder years ago.\n",
    "mountain_bread.md": "# Mountain Bread\n\n"
    "**Cara:** The bread rises faster up here because the air is thin and rather lazy today.\n\n"
    "**Dan:** We bake it twice and carry it down to the valley on the backs of mules.\n",
}


def main(arguments: Sequence[str] | None = None) -> list[dict[str, float]]:
    parser = example_parser(__doc__)
    parser.add_argument("--documents", type=Path, help="folder of transcripts; default: two short built-in ones")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        documents = options.documents or Path(folder) / "documents"
        if options.documents is None:
            documents.mkdir()
            for name, text in DOCUMENTS.items():
                (documents / name).write_text(text, encoding="utf-8")
        memory = Path(folder) / "memory"
        build_memory(documents, memory)
        store = MemoryStore.open(memory)
        chunks = store.chunks()
        plan = QuestionPlan(
            64 if options.model else 4, needless_share=0.3, distractor_share=0.5, min_quote_words=8, max_quote_words=10
        )
        tasks = make_questions(chunks, plan, seed=0, memory=chunks)
        print(f"{len(chunks)} chunks, {len(tasks)} questions; first: {tasks[0].prompt}")
        config = make_config(options, adv_estimator="grpo", group_size=4)
        with Trainer(config, dataset=tasks, tools=[MemoryRetrievalTool(store)], run_path=options.run) as trainer:
            history = trainer.fit()
    print_rewards(history)
    return history


if __name__ == "__main__":
    main()
