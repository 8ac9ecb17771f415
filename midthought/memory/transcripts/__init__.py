"""Reads transcripts: `read_transcript` a file, `read_transcripts` a folder. `@transcript_format` registers another format."""

from midthought.memory.transcripts.files import (
    Transcript,
    TranscriptFolder,
    read_transcript,
    read_transcripts,
    title_of,
)
from midthought.memory.transcripts.reading import Reading, transcript_format
from midthought.memory.turns import Turn

__all__ = [
    "Reading",
    "Transcript",
    "TranscriptFolder",
    "Turn",
    "read_transcript",
    "read_transcripts",
    "title_of",
    "transcript_format",
]
