"""One conversation in the layouts of many programs and services, to be read back. Written after their published layouts."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Said(NamedTuple):
    speaker: str
    words: str
    seconds: int


def clock(seconds: int) -> str:
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def short(seconds: int) -> str:
    return clock(seconds) if seconds >= 3600 else f"{seconds // 60:02d}:{seconds % 60:02d}"


def each(pattern: str) -> Callable[[Sequence[Said]], str]:
    """Renders every turn with a pattern of {name}, {text}, {clock}, {short}, {end}."""

    def render(turns: Sequence[Said]) -> str:
        return "".join(
            pattern.format(
                name=turn.speaker,
                text=turn.words,
                clock=clock(turn.seconds),
                short=short(turn.seconds),
                end=clock(turn.seconds + 4),
                seconds=turn.seconds,
                seconds_clock=":".join(str(int(part)) for part in clock(turn.seconds).split(":")),
            )
            for turn in turns
        )

    return render


def with_top(top: str, pattern: str, bottom: str = "") -> Callable[[Sequence[Said]], str]:
    return lambda turns: top + each(pattern)(turns) + bottom


def srt(turns: Sequence[Said]) -> str:
    return "".join(
        f"{number}\n{clock(turn.seconds)},250 --> {clock(turn.seconds + 4)},000\n{turn.speaker}: {turn.words}\n\n"
        for number, turn in enumerate(turns, 1)
    )


def html_page(turns: Sequence[Said]) -> str:
    rows = "".join(
        f"<p><strong>{html.escape(turn.speaker)}</strong> <span>({short(turn.seconds)})</span><br>{html.escape(turn.words)}</p>\n"
        for turn in turns
    )
    return f"<!doctype html><html><head><title>The Bell</title></head><body><nav>Home</nav>{rows}</body></html>"


def rtf(turns: Sequence[Said]) -> str:
    lines = "".join(f"\\b {turn.speaker}:\\b0  {turn.words}\\par\n" for turn in turns)
    text = "".join(letter if letter.isascii() else f"\\u{ord(letter)}?" for letter in lines)
    return f"{{\\rtf1\\ansi\\uc1{{\\fonttbl{{\\f0 Arial;}}}}{{\\*\\generator A;}}\\pard {text}}}"


def ttml(turns: Sequence[Said]) -> str:
    names = list(dict.fromkeys(turn.speaker for turn in turns))
    agents = "".join(
        f'<ttm:agent xml:id="a{n}"><ttm:name>{html.escape(name)}</ttm:name></ttm:agent>' for n, name in enumerate(names)
    )
    cues = "".join(
        f'<p begin="{clock(turn.seconds)}.5" ttm:agent="a{names.index(turn.speaker)}">{html.escape(turn.words)}</p>\n'
        for turn in turns
    )
    return f"<tt xmlns='http://www.w3.org/ns/ttml'><head>{agents}</head><body><div>{cues}</div></body></tt>"


ASS = (
    "[Script Info]\nTitle: The Bell\n\n[Events]\n"
    "Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text\n"
)
NOTES = "# The Bell\n\nHost: Ann Lee\n\nAn hour on bells: what they are, and why.\n\n## Transcript\n\n"
OTTER_TOP = (
    "The Bell\nThu, Jul 22, 2021 1:54PM • 55:21\n\nSUMMARY KEYWORDS\n"
    "bell, clock, tide, harbor\n\nSPEAKERS\nAnn Lee, Bob\n\n"
)
VTT = "WEBVTT\n\n"
REV_END = "\nThis transcript was exported on Feb 10, 2021 - view latest version here.\n"
FIELDS = (
    "Title: The Bell\nHost: Ann Lee\nGuest: Bob Reece\nDate: 2021-07-22\nSummary: A talk about a bell, and a clock.\n"
    "License: CC BY 4.0\nURL: https://example.org/episodes/7\n\n"
)

UNTIMED: dict[str, tuple[str, Callable[[Sequence[Said]], str]]] = {
    "name: text": ("a.txt", each("{name}: {text}\n")),
    "name: text, paragraphs": ("a.txt", each("{name}: {text}\n\n")),
    "name: text in Markdown": ("a.md", with_top("# The Bell\n\n", "{name}: {text}\n\n")),
    "name: text after fields": ("a.txt", with_top(FIELDS, "{name}: {text}\n\n")),
    "bold name": ("a.md", each("**{name}:** {text}\n\n")),
    "bold name, colon outside": ("a.md", each("**{name}**: {text}\n\n")),
    "bold name on its line": ("a.md", each("**{name}**\n\n{text}\n\n")),
    "name on its line": ("a.txt", each("{name}\n{text}\n\n")),
    "name: on its line": ("a.txt", each("{name}:\n{text}\n\n")),
    "[name] text": ("a.txt", each("[{name}] {text}\n")),
    "[name]: text": ("a.txt", each("[{name}]: {text}\n")),
    ">> NAME:": ("a.txt", each(">> {name}: {text}\n\n")),
    "wide colon": ("a.txt", each("{name}：{text}\n")),
    "Rev's old layout": ("a.txt", each("{name}:\t{text}\n\n")),
    "heading": ("a.md", each("### {name}\n\n{text}\n\n")),
    "<name> text": ("a.md", each("**\\<{name}>** {text}  \n")),
    "Speaker: name": ("a.txt", each("SPEAKER: {name}\n{text}\n")),
    "class of a page": ("a.html", each('<div><span class="speaker-name">{name}</span> <span>{text}</span></div>\n')),
    "notes before and after": ("a.md", with_top(NOTES, "**{name}:** {text}\n\n", "## Links\n\n- A link\n")),
    "RTF": ("a.rtf", rtf),
    "author of a page": ("a.html", each("<section><author>{name}</author><p>{text}</p></section>\n")),
    "name — text": ("a.txt", each("{name} — {text}\n\n")),
    "terms of a page": ("a.html", with_top("<dl>", "<dt>{name}</dt><dd>{text}</dd>\n", "</dl>")),
}
TIMED: dict[str, tuple[str, Callable[[Sequence[Said]], str]]] = {
    "name (time)": ("a.txt", each("{name} ({clock})\n{text}\n\n")),
    "name (time): text": ("a.txt", each("{name} ({clock}): {text}\n")),
    "name [time] text": ("a.txt", each("{name} [{short}] {text}\n")),
    "name time": ("a.txt", each("{name} {short}\n{text}\n\n")),
    "name time text": ("a.txt", each("{name} {short} {text}\n\n")),
    "[name] [time]": ("a.txt", each("[{name}] [{clock}]\n{text}\n\n")),
    "[name] [time] text": ("a.txt", each("[{name}] [{clock}] {text}\n")),
    "[time] [name] text": ("a.txt", each("[{clock}] [{name}] {text}\n")),
    "[time] name: text": ("a.txt", each("[{clock}] {name}: {text}\n")),
    "time name: text": ("a.txt", each("{clock} {name}: {text}\n\n")),
    "time - name: text": ("a.txt", each("{clock} - {name}: {text}\n\n")),
    "name, time on separate lines": ("a.txt", each("{name}\n{clock}\n{text}\n\n")),
    "time, name on separate lines": ("a.txt", each("{clock}\n{name}\n{text}\n\n")),
    "all on separate paragraphs": ("a.txt", each("{name}\n\n{clock}\n\n{text}\n\n")),
    "name | time": ("a.txt", each("{name} | {short}\n{text}\n\n")),
    "time | name | text": ("a.txt", each("{clock} | {name} | {text}\n")),
    "name - time": ("a.txt", each("{name} - {short}\n{text}\n\n")),
    "Rev": ("a.txt", with_top("", "{name} ({short}):\n{text}\n\n", REV_END)),
    "Rev, colon first": ("a.txt", each("{name}: ({short})\n{text}\n\n")),
    "Otter": ("a.txt", with_top(OTTER_TOP, "{name}  {short}  \n{text}\n\n", "Transcribed by https://otter.ai\n")),
    "HappyScribe": ("a.txt", each("[{clock}.120] - {name}\n{text}\n\n")),
    "Descript": ("a.txt", with_top("The Bell\n\n", "[{clock}] {name}: {text}\n\n")),
    "Descript, Markdown": ("a.md", with_top("# The Bell\n\n", "**{name}:** [{clock}] {text}\n\n")),
    "Descript, time first": ("a.md", each("[{clock}] **{name}:** {text}\n\n")),
    "Riverside": ("a.txt", each("{name} ({short}.123)\n{text}\n\n")),
    "Sonix": ("a.txt", with_top("The Bell.mp3\n\n", "{name}: [{clock}] {text}\n\n")),
    "Trint": ("a.txt", each("{name} [{clock}]\n{text}\n\n")),
    "bold name (time)": ("a.md", each("**{name}** ({clock}): {text}\n\n")),
    "time in the bold name": ("a.md", each("**{name} ({clock}):** {text}\n\n")),
    "time before the bold name": ("a.md", each("**[{clock}] {name}:** {text}\n\n")),
    "bold name [time] on its line": ("a.md", each("**{name}** [{clock}]\n\n{text}\n\n")),
    "escaped time in Markdown": ("a.md", each("**{name}:** \\[{clock}.06\\] {text}\n\n")),
    "heading with time": ("a.md", each("## {name} ({clock})\n\n{text}\n\n")),
    "wide signs": ("a.txt", each("{name}（{short}）：{text}\n")),
    "Premiere": ("a.txt", each("{clock}:00 - {end}:12\n{name}\n{text}\n\n")),

    "range of times": ("a.txt", each("[{clock} - {end}] {name}: {text}\n")),
    "SRT": ("a.srt", srt),
    "VTT": ("a.vtt", with_top(VTT, "{clock}.000 --> {end}.000 align:start position:0%\n<v {name}>{text}</v>\n\n")),
    "VTT, Zoom": ("a.vtt", with_top(VTT, "{clock}.000 --> {end}.000\n{name}: {text}\n\n")),
    "VTT in .txt, karaoke": ("a.txt", with_top(VTT, "{clock}.000 --> {end}.000\n<v {name}><{clock}.000><c>{text}</c>\n\n")),
    "podcast-namespace HTML": ("a.html", each("<cite>{name}:</cite>\n<time>{short}</time>\n<p>{text}</p>\n")),
    "page": ("a.html", html_page),
    "names within paragraphs": ("a.html", each("<p><cite>{name}:</cite> <time>{short}</time> {text}</p>\n")),
    "columns": ("a.txt", each("{clock}\t{name}\t{text}\n")),
    "name time: on its line": ("a.md", each("{name} {clock}:\n\n{text}\n\n")),
    "VTT, names on their lines": ("a.vtt", with_top(VTT, "{clock}.000 --> {end}.000\n{name}\n{text}\n\n")),
    "VTT in seconds": ("a.vtt", with_top(VTT, "{seconds}.120 --> {seconds}.900\n<v {name}>{text}\n\n")),
    "SRT, arrows": ("a.srt", each("1\n{clock},000 --> {end},000\n>> {name}: {text}\n\n")),
    "time in italics": ("a.md", each("**{name}** - *{short}*\n\n{text}\n\n")),
    "time with a link": ("a.txt", each("{name} [({clock})](https://example.org/?t={seconds}) {text}\n\n")),
    "arrow between times": ("a.txt", each("[{clock}.120 -> {end}.400] {name}: {text}\n")),
    "times, name: on their line": ("a.txt", each("{clock}-{end}，{name}：\n\n    {text}\n\n")),
    "name [numbers]": ("a.txt", each("{name} [{seconds}.00 - {seconds}.90]:\n    {text}\n\n")),
    "Teams, one digit": ("a.txt", each("{seconds_clock}.0 --> {seconds_clock}.290\n{name}\n{text}\n\n")),
    "chat": ("a.txt", each("{clock}\t From {name} to Everyone : {text}\n")),
    "chat with dates": ("a.txt", each("[12/03/2021, {clock}] {name}: {text}\n")),
    "CSV": ("a.csv", with_top("Speaker,Start,Text\n", '{name},{clock},"{text}"\n')),
    "TSV": ("a.tsv", with_top("start\tspeaker\ttext\n", "{clock}\t{name}\t{text}\n")),
    "SBV": ("a.sbv", each("{clock}.120,{end}.000\n{name}: {text}\n\n")),
    "TTML": ("a.ttml", ttml),
    "SAMI": ("a.smi", with_top("<SAMI><BODY>\n", "<SYNC Start={seconds}000><P Class=EN>{name}: {text}\n")),
    "SubStation Alpha": ("a.ass", with_top(ASS, "Dialogue: 0,{clock}.10,{end}.00,Default,{name},0,0,0,,{{\\i1}}{text}\n")),
}  # fmt: skip
