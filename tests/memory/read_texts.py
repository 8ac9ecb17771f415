"""What a transcript says, for comparisons."""

from midthought.memory.transcripts import Transcript


def said(transcript: Transcript) -> list[tuple[str, str]]:
    """Returns speaker and text of each turn."""
    return [(turn.speaker, turn.text) for turn in transcript.turns]
