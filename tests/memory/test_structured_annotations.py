"""Files of annotation programs and old subtitles: CHAT, TextGrid, MicroDVD, LRC, RTTM."""

import json

import pytest
from read_texts import said

from midthought.errors import TranscriptError

CHAT = """@UTF8
@Begin
@Languages:\teng
@Participants:\tCHI Tom Target_Child, MOT Mother
@Comment:\tA long remark about the recording, which is continued
\ton a second line: with a colon
*CHI:\tand then the bell +... \x151200_3400\x15
%mor:\tcoord|and adv|then det|the n|bell
*MOT:\t+< <what did> [/] &-um what did (.) it do@s:spa
\tthis time ? \x153400_5600\x15
*CHI:\t&=laughs .
*CHI:\t(be)cause [: because] it said +"/.
@End
"""


def test_chat_of_corpora(read):
    transcript = read(CHAT, "a.cha")
    expected = [
        ("CHI", "and then the bell…"),
        ("MOT", "what did um what did it do this time?"),
        ("CHI", "because it said."),
    ]
    assert said(transcript) == expected and not transcript.is_doubtful
    assert [turn.time for turn in transcript.turns] == ["00:00:01", "00:00:03", None]
    assert dict(transcript.header)["Participants"].startswith("CHI Tom")
    assert {skip.reason for skip in transcript.skipped} == {"dependent tier", "no words, only codes"}


def grid(tiers, *, is_short):
    lines = ['File type = "ooTextFile"', 'Object class = "TextGrid"', ""]
    lines += (
        ["0", "9", "<exists>", str(len(tiers))] if is_short else ["xmin = 0", "xmax = 9", "tiers? <exists>", "item []:"]
    )
    for name, texts in tiers.items():
        values = [
            ("class", '"IntervalTier"'),
            ("name", f'"{name}"'),
            ("xmin", "0"),
            ("xmax", "9"),
            ("size", str(len(texts))),
        ]
        for start, text in texts.items():
            values += [
                ("xmin", str(start)),
                ("xmax", str(start + 0.5)),
                ("text", '"{}"'.format(text.replace('"', '""'))),
            ]
        lines += [value if is_short else f"{key} = {value} " for key, value in values]
    return "\n".join(lines)


@pytest.mark.parametrize("is_short", [False, True])
def test_text_grids(read, is_short):
    tiers = {"Ann": {1.5: "So it rang.", 2: "", 3.5: 'At "three", yes.'}, "Bob": {2.5: "Did it?"}}
    transcript = read(grid(tiers, is_short=is_short), "a.TextGrid")
    assert said(transcript) == [("Ann", "So it rang."), ("Bob", "Did it?"), ("Ann", 'At "three", yes.')]
    assert [turn.time for turn in transcript.turns] == ["00:00:01", "00:00:02", "00:00:03"]


def test_tiers_of_words_and_sounds_repeat_no_speech(read):
    words = dict(enumerate(["so", "it", "rang", "at", "three"]))
    sounds = {n / 4: sign for n, sign in enumerate("soɪtræŋətθri")}
    transcript = read(grid({"phones": sounds, "words": words}, is_short=False), "a.TextGrid")
    assert said(transcript) == [("Unknown Speaker", "so it rang at three")] and not transcript.is_doubtful
    tiers = {
        "Ann - phones": sounds,
        "Ann - words": words,
        "Ann - utterances": {0: "So it rang at three."},
        "Bob": {5: "Yes."},
    }
    transcript = read(grid(tiers, is_short=True), "a.TextGrid")
    assert said(transcript) == [("Ann", "So it rang at three."), ("Bob", "Yes.")]
    assert len(transcript.skipped) == 2


@pytest.mark.parametrize(("first", "time"), [("{1}{1}25.000\n", "00:00:04"), ("", None)])
def test_subtitles_by_frame(read, first, time):
    transcript = read(first + "{100}{150}{y:i}The bell|rang.\n{200}{210}Twice.\n", "a.sub")
    assert said(transcript) == [("Unknown Speaker", "The bell rang. Twice.")] and transcript.turns[0].time == time
    assert not transcript.is_doubtful


def test_lyrics(read):
    transcript = read(
        "[ti:The bell]\n[00:04.50]\n[00:08.62]The bell rang\n[00:05.00][00:12.10]<00:12.30>Twice\n", "a.lrc"
    )
    assert said(transcript) == [("Unknown Speaker", "Twice The bell rang Twice")]
    assert transcript.episode == "The bell" and transcript.turns[0].time == "00:00:05"


def test_times_of_speakers_without_words_are_refused(read):
    lines = "".join(f"SPEAKER talk 1 {n}.031 2.531 <NA> <NA> SPEAKER_0{n % 2} <NA> <NA>\n" for n in range(9))
    with pytest.raises(TranscriptError, match=r"RTTM.*has no words"):
        read(lines, "a.rttm")


def test_tiers_of_codes_in_elan_are_no_speech(read):
    words = ["So it rang.", "At three?", "Yes, at three.", "And then?", "Nothing at all.", "I see."]
    codes = {
        "gaze": ["left", "right"] * 3,
        "face": ["smile", "neutral"] * 3,
        "head": ["nod"] * 6,
        "other": ["left", "nod"],
    }
    slots = "".join(f'<TIME_SLOT TIME_SLOT_ID="ts{n}" TIME_VALUE="{1000 * n}"/>' for n in range(6))

    def tier(participant, name, values):
        found = "".join(
            f'<ALIGNABLE_ANNOTATION TIME_SLOT_REF1="ts{n}"><ANNOTATION_VALUE>{value}</ANNOTATION_VALUE></ALIGNABLE_ANNOTATION>'
            for n, value in enumerate(values)
        )
        return f'<TIER PARTICIPANT="{participant}" TIER_ID="{name}">{found}</TIER>'

    tiers = "".join(tier("Ann", name, values) for name, values in codes.items()) + tier("Ann", "Ann_verbal", words)
    transcript = read(f'<?xml version="1.0"?>\n<ANNOTATION_DOCUMENT>{slots}{tiers}</ANNOTATION_DOCUMENT>', "a.eaf")
    assert said(transcript) == [("Ann", " ".join(words))] and not transcript.is_doubtful
    assert len(transcript.skipped) == 4 and {skip.reason for skip in transcript.skipped} == {"codes"}


def test_a_rate_of_no_frames_per_second_is_no_rate(read):
    """It raised ZeroDivisionError."""
    transcript = read("{1}{2}00\n{30}{60}The bell rang.\n{70}{90}Nobody came.\n", "a.sub")
    assert {turn.time for turn in transcript.turns} <= {None, "00:00:00"}


@pytest.mark.parametrize("name", ["a.otr", "a.json"])
def test_otranscribe(read, name):
    page = "".join(
        f'<p><span class="timestamp" data-timestamp="{5 * n}.5">0:0{5 * n}</span>&nbsp;{speaker}: The bell rang.<br></p>'
        for n, speaker in enumerate(("Ann", "Bob"))
    )
    transcript = read(json.dumps({"text": page, "media": "a.mp3", "media-source": "", "media-time": 9.5}), name)
    assert said(transcript) == [("Ann", "The bell rang."), ("Bob", "The bell rang.")] and not transcript.is_doubtful
    assert [turn.time for turn in transcript.turns] == ["00:00:00", "00:00:05"]


def test_an_otranscribe_file_without_a_page_is_refused(read):
    with pytest.raises(TranscriptError, match="no JSON object with a page under 'text' and a 'media-time'"):
        read('{"media-time": 3}', "a.otr")


def test_json_of_another_program_with_a_media_time_is_no_otranscribe_file(read):
    segments = [{"speaker": name, "text": "The bell rang."} for name in ("Ann", "Bob")]
    assert said(read(json.dumps({"media-time": 0, "segments": segments}), "a.json")) == [
        ("Ann", "The bell rang."),
        ("Bob", "The bell rang."),
    ]
