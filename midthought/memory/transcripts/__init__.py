"""Reads transcripts: `read_transcript` a file, `read_transcripts` a folder."""

from midthought.memory.transcripts.files import (
    Transcript,
    TranscriptFolder,
    read_transcript,
    read_transcripts,
    title_of,
)
from midthought.memory.turns import Turn

__all__ = ["Transcript", "TranscriptFolder", "Turn", "read_transcript", "read_transcripts", "title_of"]
