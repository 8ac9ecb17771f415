"""Reads a transcript file, or a folder of them, into episodes with turns."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from midthought.errors import TranscriptError
from midthought.memory.splitting import duplicate_groups
from midthought.memory.transcripts.folder_settings import Notations, SpeakerNames
from midthought.memory.transcripts.formats import remedy, suffixes, understood
from midthought.memory.transcripts.reading import Skipped, failed_checks
from midthought.memory.turns import TIME_MARK, UNKNOWN_SPEAKER, Turn, turns_of, without_unusable_characters, word_count

MAX_BYTES = 256 * 2**20
"""Maximum size of a file. Ten hours of speech with a timestamp per word are 20 MB."""

_IGNORED_STEMS = {
    "readme", "license", "licence", "copying", "notice", "contributing", "makefile", "authors", "changelog",
}  # fmt: skip
_SUMMARY_NAMES = {
    f"{step}_summary.json" for step in ("scraping", "conversion", "embeddings", "generation", "ingestion")
}
_ACRONYMS = {"afk", "ai", "api", "css", "html", "js", "qa", "rfc", "sql", "tv", "ui", "ux"}


@dataclass(frozen=True, slots=True)
class Transcript:
    """One episode."""

    episode: str
    """The title: from the source, else derived from the file name."""
    stem: str
    """The file name without suffix; unique within a folder read together. Chunk ids start with it."""
    turns: tuple[Turn, ...]
    path: Path
    format: str = ""
    """The name of the format, detected from the content."""
    encoding: str = "utf-8"
    header: tuple[tuple[str, str], ...] = ()
    """Fields (key, value) before the first turn; the key is empty for other text there."""
    skipped: tuple[Skipped, ...] = ()
    """Text that is neither speech nor a header field, with the reason."""
    style: str = ""
    """The text style, as docs/memory.md names it."""
    doubts: tuple[str, ...] = ()
    """A sentence for each of the five checks that the file fails."""

    @property
    def speakers(self) -> tuple[str, ...]:
        """Named speakers, in the order of their first words. Empty if the source names none."""
        return tuple(dict.fromkeys(turn.speaker for turn in self.turns if turn.speaker != UNKNOWN_SPEAKER))

    @property
    def is_doubtful(self) -> bool:
        """Whether the file fails a check, so that somebody should look at it."""
        return bool(self.doubts)

    @property
    def has_times(self) -> bool:
        """Whether the source has any timestamp."""
        return any(turn.time or turn.marks for turn in self.turns)

    @property
    def num_words(self) -> int:
        """Number of words of all turns; two letters of a script without blanks between words count as one."""
        return sum(word_count(turn.text) for turn in self.turns)


@dataclass(frozen=True, slots=True)
class TranscriptFolder:
    """Contents of a folder: the transcripts, by relative path, and the files that could not be read."""

    transcripts: tuple[Transcript, ...]
    failures: tuple[tuple[Path, str], ...]
    left_out: tuple[Path, ...] = ()
    """Files skipped because of their names: another suffix, a licence, a summary."""
    path: Path = Path()
    copies: tuple[tuple[Path, ...], ...] = ()
    """Groups of files with the same words, such as an episode's SRT and JSON; the one with most information on speakers
    and times is first. With `each_once`, only that one is among the transcripts."""

    def name_of(self, path: Path) -> str:
        """Returns the path relative to the folder."""
        return str(path.relative_to(self.path) if path.is_relative_to(self.path) and path != self.path else path)

    @property
    def doubtful(self) -> tuple[Transcript, ...]:
        """Transcripts that fail a check."""
        return tuple(each for each in self.transcripts if each.is_doubtful)

    def require_all(self) -> tuple[Transcript, ...]:
        """Returns the transcripts; raises TranscriptError if any file could not be read."""
        if self.failures:
            raise TranscriptError(_failure_message(self.failures))
        return self.transcripts


def read_transcript(
    path: str | Path, names: SpeakerNames | None = None, notations: Notations | None = None
) -> Transcript:
    """Reads one file, in the format that its content shows. Raises TranscriptError with the file, the reason and the remedy.

    `names` has the names of labels, and `notations` how turns start. None: the `speakers.yaml` and the `notation.yaml` in its
    folder are used.
    """
    path = Path(path)
    if not path.is_file():
        what = (
            "a link to nothing, or no regular file" if path.is_symlink() or path.exists() else "there is no such file"
        )
        raise TranscriptError(f"{path}: {what}; give the path of a transcript or of a folder of them")
    try:
        if path.stat().st_size > MAX_BYTES:
            raise TranscriptError(f"{path}: larger than {MAX_BYTES >> 20} MiB; split it by episode")
        content = path.read_bytes()
    except OSError as error:
        raise TranscriptError(
            f"{path}: cannot be read ({error.strerror}); check the file and its permissions"
        ) from None
    form, encoding, reading = understood(path, content, (notations or Notations(path.parent)).declared(path))
    by_label = (names or SpeakerNames(path.parent)).by_label(path)
    segments = [
        replace(each, speaker=each.speaker and by_label.get(each.speaker.casefold(), each.speaker))
        for each in reading.segments
    ]
    turns = turns_of(segments)
    if not turns:
        raise TranscriptError(f"{path}: no speaker turn found; {remedy(form)}")
    return Transcript(
        " ".join(_without_marks(reading.title or "").split()) or title_of(path.stem),
        path.stem,
        tuple(turns),
        path,
        form,
        encoding,
        tuple((_without_marks(key), _without_marks(value)) for key, value in reading.header),
        tuple(each._replace(text=_without_marks(each.text)) for each in reading.skipped),
        reading.style,
        tuple(failed_checks(reading, turns)),
    )


def _without_marks(text: str) -> str:
    """Returns text that is no speech with plain times: `turns_of` reads their marks in speech only."""
    return text.replace(TIME_MARK, "")


def read_transcripts(folder: str | Path, *, each_once: bool = False, require_any: bool = True) -> TranscriptFolder:
    """Reads all transcripts below `folder` (or a single file); with `each_once`, one of each group with the same words.

    Licences, READMEs, summaries and unknown suffixes are `left_out`; hidden files are ignored. Raises TranscriptError
    if the path does not exist or nothing below it can be read (without `require_any` only if it has no file to read); single
    files that cannot be read are `failures`.
    """
    folder = Path(folder)
    is_single = folder.is_file()
    if not is_single and not folder.is_dir():
        raise TranscriptError(f"{folder}: there is no such file or folder; give the path of your transcripts")
    transcripts: list[Transcript] = []
    failures: list[tuple[Path, str]] = []
    left_out: list[Path] = []
    top = folder.parent if is_single else folder
    names, notations = SpeakerNames(top), Notations(top)
    for path in [folder] if is_single else _files(folder):
        if path.name in (names.name, notations.name) and not is_single:
            continue
        if _is_no_transcript(path) and not is_single:
            left_out.append(path)
            continue
        try:
            transcripts.append(read_transcript(path, names, notations))
        except TranscriptError as error:
            failures.append((path, str(error)))
    if not transcripts and failures and require_any:
        raise TranscriptError(_failure_message(failures))
    if not transcripts and not failures:
        raise TranscriptError(
            f"{folder}: no transcript in this folder; add files with the suffixes {' '.join(suffixes())}"
        )
    copies = _copies(transcripts)
    if each_once:
        again = {path for group in copies for path in group[1:]}
        transcripts = [transcript for transcript in transcripts if transcript.path not in again]
    unique = _with_unique_stems(transcripts, folder)
    return TranscriptFolder(tuple(unique), tuple(failures), tuple(left_out), folder, copies)


def title_of(stem: str) -> str:
    """`practical-ai-110` gives `Practical AI 110`."""
    words = [word for word in re.split(r"[-_.\s]+", without_unusable_characters(stem)) if word]
    title = " ".join(word.upper() if word.lower() in _ACRONYMS else word[0].upper() + word[1:] for word in words)
    return title or stem


def _files(folder: Path) -> Iterator[Path]:
    """Yields the files below a folder in the order of their paths, without hidden ones and the tables of a memory."""
    for path in sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).parts):
        parts = path.relative_to(folder).parts
        tables = (parent for parent in path.parents if parent.suffix == ".lance" and (parent / "_versions").is_dir())
        is_hidden = any(part.startswith(".") for part in parts) or any(tables)
        if not is_hidden and not path.is_dir():
            yield path


def _is_no_transcript(path: Path) -> bool:
    """Whether a file is known by its name to be none: another suffix, a licence, a summary, the report on questions."""
    has_known_suffix = not path.suffix or path.suffix.lower() in suffixes()
    is_summary = path.name in _SUMMARY_NAMES or path.name.endswith(".report.json")
    return path.stem.lower() in _IGNORED_STEMS or is_summary or not has_known_suffix


def _copies(transcripts: list[Transcript]) -> tuple[tuple[Path, ...], ...]:
    def quality_order(each: Transcript) -> tuple[bool, bool, int]:
        return not each.speakers, not each.has_times, -len(each.turns)

    groups = duplicate_groups([" ".join(turn.text for turn in each.turns) for each in transcripts])
    ordered = (sorted((transcripts[number] for number in group), key=quality_order) for group in groups)
    return tuple(tuple(each.path for each in group) for group in ordered)


def _with_unique_stems(transcripts: list[Transcript], folder: Path) -> Iterator[Transcript]:
    """Prefixes equal file names with their folders' names; adds the suffix if that is not enough, then a number."""
    for keeps_suffix in (False, True):
        counts = Counter(each.stem for each in transcripts)
        for number, each in enumerate(transcripts):
            if counts[each.stem] > 1:
                path = each.path.relative_to(folder)
                parts = (path if keeps_suffix else path.with_suffix("")).parts
                transcripts[number] = replace(each, stem="-".join(parts))
    taken: set[str] = set()
    for each in transcripts:
        numbered = (f"{each.stem}-{copy}" for copy in itertools.count(2))
        stem = next(stem for stem in itertools.chain([each.stem], numbered) if stem not in taken)
        taken.add(stem)
        yield replace(each, stem=stem)


def _failure_message(failures: tuple[tuple[Path, str], ...] | list[tuple[Path, str]]) -> str:
    more = f" (and {len(failures) - 1} more files that cannot be read; 'midthought memory inspect' shows each)"
    return failures[0][1] + (more if len(failures) > 1 else "")
