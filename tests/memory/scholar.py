"""A model behind a real HTTP server that writes questions and answers them."""

import hashlib
import json
import re
from pathlib import Path

from chat_server import ChatServer

from midthought.data.final_answers import NO_ANSWER, UNANSWERABLE
from midthought.http.json_requests import EndpointSettings
from midthought.memory.llm_questions.structured_output import StructuredOutputModel

SAID = {
    "tide": [
        "The clock has one copper hand.",
        "It was built in 1911.",
        "Herring scales were found in it.",
        "We wound it daily.",
    ],
    "bell": ["The bell is of bronze.", "Nobody rings it.", "It came from Lisbon.", "A storm broke its yoke."],
}


def question_of(episode: str, number: int) -> str:
    """Different words for each."""
    digest = hashlib.sha256(f"{episode} {number}".encode()).hexdigest()
    return f"Why {' '.join(digest[start : start + 5] for start in range(0, 40, 5))}?"


class Scholar(ChatServer):
    """A model that writes pairs about an episode's first and last part, and answers from passages alone. `upsets` come first."""

    def __init__(self) -> None:
        super().__init__(lambda body: json.dumps(self.answer(body)))
        self.upsets: list = []
        self.knows_all = False
        self.changes: dict = {}
        """Of every pair that it writes."""

    def next_reply(self, body: dict):
        with self.lock:
            return self.upsets.pop(0) if self.upsets else None

    def pairs(self, material: dict) -> list[dict]:
        """Of each kind as many as requested, about the first and the last part."""
        parts = [part.partition(": ")[2] for part in material["transcript"]]
        numbers = [int(part.partition(".")[0]) for part in material["transcript"]]
        kinds = [kind for kind, wanted in material["kinds"].items() for _ in range(wanted["num_pairs"])]
        assert len(kinds) == material["num_pairs"]
        num_asked = len(material["already_asked"])
        return [
            {
                "kind": kind,
                "question": question_of(f"{material['transcript']}{kind}", num_asked + n)
                + (" The unheard?" if kind == UNANSWERABLE else ""),
                "answer": NO_ANSWER if kind == UNANSWERABLE else f"{parts[0]} And: {parts[-1]}",
                "evidence": [numbers[0], numbers[-1]],
                "difficulty": "hard",
                "requires_synthesis": True,
            }
            | self.changes
            for n, kind in enumerate(kinds)
        ]

    def answer(self, body: dict) -> dict:
        system, material = (message["content"] for message in body["messages"])
        material = json.loads(material)
        if system.startswith("You write"):
            return {"qa_pairs": self.pairs(material)}
        if system.startswith("Answer"):
            said = [*material["passages"], *(["I know."] if self.knows_all else [])]
            is_false = "unheard" in material["question"]
            return {"known": bool(said) and not is_false, "answer": " ".join(said)}
        if material["answer"] == "I know.":
            return {"same": True}
        wanted = re.findall(r"\w+", material["reference"].replace("And:", ""))
        return {"same": self.knows_all or set(wanted) <= set(re.findall(r"\w+", material["answer"]))}


def model_at(scholar: Scholar, cache: Path | None = None, **settings) -> StructuredOutputModel:
    values = {"timeout_seconds": 20.0, "retries": 4, "backoff_seconds": 0.001, "max_concurrency": 4, **settings}
    return StructuredOutputModel("m", EndpointSettings(base_url=scholar.url, api_key_env=None, **values), cache)
