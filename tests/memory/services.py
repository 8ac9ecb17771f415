"""One conversation as the JSON of speech recognition services and programs, written after their documentation."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from rendered import Said, clock

Words = list[tuple[str, float, float]]


def timed(turn: Said) -> Words:
    """The words of a turn, (word, start, end) in seconds."""
    return [(word, turn.seconds + 0.3 * n, turn.seconds + 0.3 * n + 0.25) for n, word in enumerate(turn.words.split())]


def labels(turns: Sequence[Said]) -> dict[str, int]:
    return {name: number for number, name in enumerate(dict.fromkeys(turn.speaker for turn in turns))}


def assemblyai(turns: Sequence[Said]) -> Any:
    def words(turn: Said) -> list[dict[str, Any]]:
        return [
            {"text": w, "start": round(1000 * s), "end": round(1000 * e), "confidence": 0.9, "speaker": turn.speaker}
            for w, s, e in timed(turn)
        ]

    return {
        "id": "5551722-f677", "language_model": "assemblyai_default", "status": "completed", "audio_duration": 281,
        "text": " ".join(turn.words for turn in turns),
        "words": [word for turn in turns for word in words(turn)],
        "utterances": [
            {
                "speaker": turn.speaker, "text": turn.words, "confidence": 0.95, "words": words(turn),
                "start": words(turn)[0]["start"], "end": words(turn)[-1]["end"],
            }
            for turn in turns
        ],
    }  # fmt: skip


def deepgram(turns: Sequence[Said], *, utterances: bool = True, paragraphs: bool = True) -> Any:
    who = labels(turns)
    words = [
        {
            "word": w.lower().strip(".,?!"),
            "start": s,
            "end": e,
            "confidence": 0.99,
            "speaker": who[t.speaker],
            "punctuated_word": w,
        }
        for t in turns
        for w, s, e in timed(t)
    ]
    best: dict[str, Any] = {"transcript": " ".join(t.words for t in turns), "confidence": 0.99, "words": words}
    if paragraphs:
        best["paragraphs"] = {
            "transcript": "".join(f"\nSpeaker {who[t.speaker]}: {t.words}\n" for t in turns),
            "paragraphs": [
                {
                    "sentences": [{"text": t.words, "start": timed(t)[0][1], "end": timed(t)[-1][2]}],
                    "num_words": len(timed(t)), "start": timed(t)[0][1], "end": timed(t)[-1][2], "speaker": who[t.speaker],
                }
                for t in turns
            ],
        }  # fmt: skip
    results: dict[str, Any] = {"channels": [{"alternatives": [best]}]}
    if utterances:
        results["utterances"] = [
            {
                "start": timed(t)[0][1], "end": timed(t)[-1][2], "confidence": 0.9, "channel": 0, "transcript": t.words,
                "words": [{"word": w, "start": s, "end": e, "speaker": who[t.speaker]} for w, s, e in timed(t)],
                "speaker": who[t.speaker], "id": "x",
            }
            for t in turns
        ]  # fmt: skip
    return {"metadata": {"request_id": "a", "duration": 300.1, "models": ["nova"]}, "results": results}


def aws(turns: Sequence[Said], *, inline: bool = False) -> Any:
    who = {name: f"spk_{number}" for name, number in labels(turns).items()}
    items: list[dict[str, Any]] = []
    for turn in turns:
        for word, start, end in timed(turn):
            bare = word.rstrip(".,?!")
            item = {
                "type": "pronunciation", "alternatives": [{"confidence": "0.99", "content": bare}],
                "start_time": str(round(start, 3)), "end_time": str(round(end, 3)),
            }  # fmt: skip
            items.append(item | ({"speaker_label": who[turn.speaker]} if inline else {}))
            if mark := word[len(bare) :]:
                items.append({"type": "punctuation", "alternatives": [{"confidence": "0.0", "content": mark}]})
    spans = [
        {
            "start_time": str(turn.seconds), "speaker_label": who[turn.speaker], "end_time": str(turn.seconds + 4),
            "items": [
                {"start_time": str(round(s, 3)), "speaker_label": who[turn.speaker], "end_time": str(round(e, 3))}
                for _, s, e in timed(turn)
            ],
        }
        for turn in turns
    ]  # fmt: skip
    results = {
        "transcripts": [{"transcript": " ".join(turn.words for turn in turns)}],
        "speaker_labels": {"channel_label": "ch_0", "speakers": len(who), "segments": spans},
        "items": items,
    }
    if inline:
        results["audio_segments"] = [
            {
                "id": number, "transcript": turn.words, "start_time": str(turn.seconds), "end_time": str(turn.seconds + 4),
                "speaker_label": who[turn.speaker], "items": [number],
            }
            for number, turn in enumerate(turns)
        ]  # fmt: skip
    return {"jobName": "bell", "accountId": "1", "status": "COMPLETED", "results": results}


def google(turns: Sequence[Said], *, diarized: bool = True) -> Any:
    who = {name: number + 1 for name, number in labels(turns).items()}

    def words(turn: Said, tag: bool) -> list[dict[str, Any]]:
        return [
            {"startTime": f"{s:.3f}s", "endTime": f"{e:.3f}s", "word": w}
            | ({"speakerTag": who[turn.speaker]} if tag else {})
            for w, s, e in timed(turn)
        ]

    results: list[dict[str, Any]] = [
        {
            "alternatives": [
                {"transcript": f" {turn.words}", "confidence": 0.9, "words": words(turn, False)},
                {"transcript": f" {turn.words} perhaps", "confidence": 0.4},
            ],
            "resultEndTime": f"{turn.seconds + 4}s", "languageCode": "en-us",
        }
        for turn in turns
    ]  # fmt: skip
    if diarized:
        results.append({"alternatives": [{"words": [word for turn in turns for word in words(turn, True)]}]})
    return {"results": results, "totalBilledTime": "300s"}


def rev(turns: Sequence[Said]) -> Any:
    who = labels(turns)
    monologues = []
    for turn in turns:
        elements: list[dict[str, Any]] = []
        for word, start, end in timed(turn):
            bare = word.rstrip(".,?!")
            elements.append({"type": "text", "value": bare, "ts": start, "end_ts": end, "confidence": 0.9})
            elements.append({"type": "punct", "value": word[len(bare) :] + " "})
        monologues.append({"speaker": who[turn.speaker], "elements": elements})
    return {"speakers": [{"id": number, "name": name} for name, number in who.items()], "monologues": monologues}


def azure(turns: Sequence[Said]) -> Any:
    who = labels(turns)
    return {
        "source": "https://example.org/bell.wav", "timestamp": "2024-01-01T00:00:00Z", "durationInTicks": 3000000000,
        "combinedRecognizedPhrases": [{"channel": 0, "display": " ".join(turn.words for turn in turns)}],
        "recognizedPhrases": [
            {
                "recognitionStatus": "Success", "channel": 0, "speaker": who[turn.speaker], "offset": f"PT{turn.seconds}S",
                "duration": "PT4S", "offsetInTicks": turn.seconds * 10_000_000,
                "nBest": [{"confidence": 0.9, "lexical": turn.words.lower(), "display": turn.words}],
            }
            for turn in turns
        ],
    }  # fmt: skip


def speechmatics(turns: Sequence[Said]) -> Any:
    who = {name: f"S{number + 1}" for name, number in labels(turns).items()}
    results = []
    for turn in turns:
        for word, start, end in timed(turn):
            bare = word.rstrip(".,?!")
            said = {"confidence": 1.0, "language": "en", "speaker": who[turn.speaker]}
            results.append(
                {"type": "word", "start_time": start, "end_time": end, "alternatives": [{"content": bare, **said}]}
            )
            if mark := word[len(bare) :]:
                results.append(
                    {
                        "type": "punctuation",
                        "start_time": end,
                        "end_time": end,
                        "alternatives": [{"content": mark, **said}],
                    }
                )
    return {"format": "2.9", "metadata": {"created_at": "2024-01-01"}, "results": results}


def elevenlabs(turns: Sequence[Said]) -> Any:
    who = {name: f"speaker_{number}" for name, number in labels(turns).items()}
    words = []
    for turn in turns:
        for word, start, end in timed(turn):
            words.append({"text": word, "start": start, "end": end, "type": "word", "speaker_id": who[turn.speaker]})
            words.append({"text": " ", "start": end, "end": end, "type": "spacing", "speaker_id": who[turn.speaker]})
    return {"language_code": "eng", "text": " ".join(turn.words for turn in turns), "words": words}


def ibm(turns: Sequence[Said]) -> Any:
    who = labels(turns)
    return {
        "result_index": 0,
        "results": [
            {
                "final": True,
                "alternatives": [{"transcript": f"{turn.words} ", "timestamps": [list(w) for w in timed(turn)]}],
            }
            for turn in turns
        ],
        "speaker_labels": [
            {"from": s, "to": e, "speaker": who[turn.speaker], "confidence": 0.5, "final": False}
            for turn in turns
            for _, s, e in timed(turn)
        ],
    }


def whisperx(turns: Sequence[Said]) -> Any:
    return {
        "segments": [
            {
                "start": float(turn.seconds), "end": turn.seconds + 4.0, "text": f" {turn.words}", "speaker": turn.speaker,
                "words": [{"word": w, "start": s, "end": e, "score": 0.9, "speaker": turn.speaker} for w, s, e in timed(turn)],
            }
            for turn in turns
        ],
        "language": "en",
    }  # fmt: skip


def podlove(turns: Sequence[Said]) -> Any:
    return {
        "transcripts": [
            {
                "start": f"{clock(turn.seconds)}.000", "start_ms": 1000 * turn.seconds, "end": f"{clock(turn.seconds + 4)}.000",
                "end_ms": 1000 * turn.seconds + 4000, "speaker": "2", "voice": turn.speaker, "text": turn.words,
            }
            for turn in turns
        ]
    }  # fmt: skip


def podcast_namespace(turns: Sequence[Said]) -> Any:
    return {
        "version": "1.0.0",
        "segments": [
            {"speaker": t.speaker, "startTime": t.seconds, "endTime": t.seconds + 4, "body": t.words} for t in turns
        ],
    }


def happyscribe(turns: Sequence[Said]) -> Any:
    return [
        {
            "speaker": turn.speaker,
            "words": [
                {"text": f"{w} ", "type": "text", "data_start": s, "data_end": e, "confidence": 1}
                for w, s, e in timed(turn)
            ],
        }
        for turn in turns
    ]


def sonix(turns: Sequence[Said]) -> Any:
    return {
        "name": "The Bell.mp3",
        "transcript": [
            {
                "speaker": turn.speaker, "start_time": turn.seconds, "end_time": turn.seconds + 4, "text": turn.words,
                "words": [{"text": w, "start_time": s, "end_time": e} for w, s, e in timed(turn)],
            }
            for turn in turns
        ],
    }  # fmt: skip


def fireflies(turns: Sequence[Said]) -> Any:
    return {
        "title": "The Bell",
        "sentences": [
            {
                "index": n,
                "speaker_name": t.speaker,
                "speaker_id": 0,
                "text": t.words,
                "start_time": t.seconds,
                "end_time": t.seconds + 4,
            }
            for n, t in enumerate(turns)
        ],
    }


NAMED: dict[str, Callable[[Sequence[Said]], Any]] = {
    "AssemblyAI": assemblyai, "Rev": rev, "WhisperX": whisperx, "podcast namespace": podcast_namespace,
    "HappyScribe": happyscribe, "Sonix": sonix,
}  # fmt: skip
"""These files have the names."""
NUMBERED: dict[str, tuple[Callable[[Sequence[Said]], Any], str, int]] = {
    "Deepgram": (deepgram, "Speaker {}", 0),
    "Deepgram, paragraphs": (lambda turns: deepgram(turns, utterances=False), "Speaker {}", 0),
    "Deepgram, words": (lambda turns: deepgram(turns, utterances=False, paragraphs=False), "Speaker {}", 0),
    "AWS Transcribe": (aws, "spk_{}", 0),
    "AWS Transcribe, audio segments": (lambda turns: aws(turns, inline=True), "spk_{}", 0),
    "Google": (google, "Speaker {}", 1),
    "Azure": (azure, "Speaker {}", 0),
    "Speechmatics": (speechmatics, "S{}", 1),
    "ElevenLabs": (elevenlabs, "speaker_{}", 0),
    "IBM": (ibm, "Speaker {}", 0),
}
"""These files number the voices."""


def as_json(document: Any) -> str:
    return json.dumps(document, ensure_ascii=False)
