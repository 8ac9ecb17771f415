"""Tiers that are named after what they have; subtitles in several languages, with names within a cue."""

from read_texts import said

TEXTS = ["So it rang at three.", "Nobody was there, I think.", "We had no idea.", "The clock was fast, and we left."]


def tier(attributes, texts):
    found = "".join(
        f'<ALIGNABLE_ANNOTATION TIME_SLOT_REF1="ts{n}"><ANNOTATION_VALUE>{text}</ANNOTATION_VALUE></ALIGNABLE_ANNOTATION>'
        for n, text in texts.items()
    )
    return f"<TIER {attributes}>{found}</TIER>"


def eaf(*tiers):
    slots = "".join(f'<TIME_SLOT TIME_SLOT_ID="ts{n}" TIME_VALUE="{1000 * n}"/>' for n in range(40))
    return f'<?xml version="1.0"?>\n<ANNOTATION_DOCUMENT>{slots}{"".join(tiers)}</ANNOTATION_DOCUMENT>'


def test_the_name_of_a_tier_is_not_what_it_has(read):
    texts = dict(enumerate(TEXTS))
    glosses = tier('TIER_ID="gloss" PARENT_REF="transcription"', texts)
    transcript = read(eaf(tier('TIER_ID="transcription"', texts), glosses), "a.eaf")
    assert said(transcript) == [("Unknown Speaker", " ".join(TEXTS))] and not transcript.is_doubtful
    transcript = read(
        eaf(tier('TIER_ID="Ann Lee - text"', {0: TEXTS[0]}), tier('TIER_ID="Bob"', {1: TEXTS[1]})), "a.eaf"
    )
    assert said(transcript) == [("Ann Lee", TEXTS[0]), ("Bob", TEXTS[1])]


def test_parts_of_the_words_of_a_tier_are_no_speech(read):
    words = dict(enumerate(" ".join(TEXTS).split()))
    tiers = [
        tier('TIER_ID="Ann"', dict(enumerate(TEXTS))),
        tier('TIER_ID="Ann words" PARENT_REF="Ann"', words),
        tier('TIER_ID="Ann morphemes" PARENT_REF="Ann words"', words),
    ]
    transcript = read(eaf(*tiers), "a.eaf")
    assert said(transcript) == [("Ann", " ".join(TEXTS))] and not transcript.is_doubtful


def test_tiers_of_remarks_are_no_speech(read):
    tiers = [tier('TIER_ID="Ann"', dict(enumerate(TEXTS))), tier('TIER_ID="comments"', {1: "Vera is dancing."})]
    transcript = read(eaf(*tiers), "a.eaf")
    assert said(transcript) == [("Ann", " ".join(TEXTS))]
    assert [each.reason for each in transcript.skipped] == ["remarks"]


def test_pauses_of_an_aligner_are_no_words(read):
    values = " ".join(TEXTS).replace(" ", " sp ").split()
    intervals = "".join(
        f'xmin = {n}\nxmax = {n + 1}\ntext = "{text}"\n' for n, text in enumerate(["sil", *values, "_"])
    )
    grid = f'File type = "ooTextFile"\nObject class = "TextGrid"\n\nname = "words"\nxmin = 0\nxmax = 99\n{intervals}'
    assert said(read(grid, "a.TextGrid")) == [("Unknown Speaker", " ".join(TEXTS))]


SAMI = """<SAMI><HEAD><STYLE TYPE="text/css"><!--
.ENCC { Name: English; lang: en-US; SAMIType: CC; }
.KRCC { Name: Korean; lang: ko-KR; SAMIType: CC; }
--></STYLE></HEAD><BODY>
%s
</BODY></SAMI>"""


def test_one_of_several_languages_is_read(read):
    korean = ["종이 세 시에 울렸어요.", "아무도 없었어요.", "우리는 몰랐어요.", "시계가 빨랐어요."]
    cues = "\n".join(
        f"<SYNC Start={n}000><P Class=ENCC>{text}<P Class=KRCC>{other}"
        for n, (text, other) in enumerate(zip(TEXTS, korean, strict=True))
    )
    transcript = read(SAMI % cues, "a.smi")
    assert said(transcript) == [("Unknown Speaker", " ".join(TEXTS))]
    assert [tuple(each) for each in transcript.skipped] == [(" ".join(korean), "another language")]


def test_names_on_lines_within_a_cue(read):
    turns = [(("ANN", "BOB LEE", "CY")[n % 3], text) for n, text in enumerate(TEXTS * 3)]
    lines = [f"{name}:<br/>\n{text}" for name, text in turns]
    pairs = enumerate(zip(lines[::2], lines[1::2], strict=True))
    cues = "".join(f'<SYNC start="{n}000"><P class="ENCC">{a}<br/>{b}</P></SYNC>' for n, (a, b) in pairs)
    assert said(read(SAMI % cues, "a.sami")) == turns


def test_styles_may_be_speakers(read):
    def subtitles(styles):
        events = "".join(
            f"Dialogue: 0,0:00:0{n}.00,0:00:0{n + 1}.00,{style},,0,0,0,,{text}\n"
            for n, (style, text) in enumerate(zip(styles * 2, TEXTS, strict=True))
        )
        head = "Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text"
        return f"[Script Info]\nTitle: Bells\n\n[Events]\n{head}\n{events}"

    assert read(subtitles(["Ann", "Bob"]), "a.ass").doubts == ("its styles may be the speakers: 'Ann', 'Bob'",)
    assert not read(subtitles(["Default", "Default - Italics"]), "a.ass").is_doubtful
