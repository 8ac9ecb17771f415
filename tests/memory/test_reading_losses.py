"""Words that readers lost or misplaced without a message in real files, and doubts that were none."""

import json

import pytest
from read_texts import said

from midthought.errors import TranscriptError
from midthought.memory.transcripts import read_transcript, read_transcripts

PROSE = (
    "So the bell rang at three and nobody was there to hear it, which was odd. The clock in the hall had stopped a week before, "
    "and we had no other way to tell the time, except for the tide, which came in twice a day and left again."
)
MORE = "Then the winter came and the harbor was full of ice, so that nobody went out for three weeks, and we sat and talked."
TURNS = "".join(
    f"{name}: {text}\n\n"
    for text in ("It rang at three.", "Nobody heard it.", "Who wound the clock?", "My uncle did, every week.")
    for name in ("Ann", "Bob")
)
SAID = ["The", "bell", "rang", "Who", "heard", "it"]
KOREAN = (
    "진행자: 안녕하세요 여러분, 오늘은 오래된 종탑의 이야기를 나누려고 합니다. 언제 처음 가셨나요?\n"
    "손님: 저는 어릴 때 아버지하고 같이 갔습니다. 그리고 종이 울리는 소리를 들었어요.\n"
)
RUSSIAN = (
    "Анна: Добрый день, сегодня мы говорим о старом колоколе.\nИван: Я помню его с детства, он звонил в три часа.\n"
)
JAPANESE = (
    "花子: こんにちは、今日は古い鐘のお話をうかがいます。いつ行きましたか。\n"
    "太郎: 子どものころに父といっしょに行きました。三時に鳴りました。\n"
)
CHINESE = (
    "主持: 大家好，我们今天要说的是这个老钟的故事，你是在什么时候来的？\n"
    "来宾: 我是和我的父亲一起来的，他们都说这个钟在三点会响，人们都可以听到。\n"
)

ARABIC = (
    "سامي: صباح الخير، اليوم نتحدث عن الجرس القديم في القرية.\nليلى: كان يدق ثلاث مرات ولم يكن هناك أحد في القاعة.\n"
)
HEBREW = "דנה: בוקר טוב, היום נדבר על הפעמון הישן של הכפר.\nיוסי: הוא צלצל שלוש פעמים ואיש לא היה באולם באותה שעה.\n"
GREEK = (
    "Άννα: Καλημέρα σας, σήμερα μιλάμε για την παλιά καμπάνα.\nΝίκος: Χτύπησε τρεις φορές και δεν ήταν κανείς εκεί.\n"
)
THAI = "สมชาย: วันนี้เราจะพูดถึงระฆังเก่าของหมู่บ้านที่อยู่ริมทะเล\nมาลี: ระฆังนั้นตีสามครั้งและไม่มีใครอยู่ในห้องโถงเลยสักคน\n"


@pytest.mark.parametrize(
    ("words", "encoding"),
    [
        (ARABIC, "cp1256"),
        (HEBREW, "cp1255"),
        (GREEK, "cp1253"),
        (THAI, "cp874"),
        (KOREAN, "cp949"),
        (RUSSIAN, "cp1251"),
        (RUSSIAN, "koi8-r"),
        (JAPANESE, "cp932"),
        (JAPANESE, "euc-jp"),
        (CHINESE, "gb18030"),
    ],
)
def test_older_encodings_are_read_if_their_usual_letters_show_one_only(tmp_path, words, encoding):
    for name, content in {"old.txt": words.encode(encoding), "new.txt": words.encode("utf-8")}.items():
        (tmp_path / name).write_bytes(content * 3)
    assert said(read_transcript(tmp_path / "old.txt")) == said(read_transcript(tmp_path / "new.txt"))


@pytest.mark.parametrize(
    "words", [KOREAN, RUSSIAN, "Άννα: Καλημέρα σας, σήμερα μιλάμε για την παλιά καμπάνα του χωριού μας.\n"]
)
def test_damaged_utf_8_is_no_older_encoding(tmp_path, words):
    (tmp_path / "a.txt").write_bytes(words.encode("utf-8") * 3 + b"\xff")
    with pytest.raises(TranscriptError, match="not UTF-8"):
        read_transcript(tmp_path / "a.txt")


def test_speeches_of_a_parliament_in_akoma_ntoso(read):
    speech = "<speech by='#a'><from>{}</from><p>{}</p><p>Thank you.</p></speech>"
    page = (
        '<akomaNtoso xmlns="http://x.org"><debate><meta><FRBRdate date="2013-02-14"/></meta><preface><p>Thursday</p></preface>'
        "<debateSection><heading>BELLS</heading>"
        + speech.format("The CHIEF WHIP OF THE OPPOSITION", "The bell rang at three.")
        + speech.format("Mr B H LEE", "Nobody heard it.")
        + "</debateSection></debate></akomaNtoso>"
    )
    transcript = read(page, "a.xml")
    assert read_transcripts(transcript.path.parent).transcripts == (transcript,) and not transcript.is_doubtful
    assert said(transcript) == [
        ("The CHIEF WHIP OF THE OPPOSITION", "The bell rang at three. Thank you."),
        ("Mr B H LEE", "Nobody heard it. Thank you."),
    ]


@pytest.mark.parametrize(
    "page",
    [
        f'<?xml version="1.0"?><rss version="2.0"><channel><title>Bells</title><item><title>One</title><description>{RUSSIAN * 9}'
        "</description></item></channel></rss>",
        f'<?xml version="1.0"?><resources>{"<string name=greeting>Ann: Hello, who rang the bell?</string>" * 20}</resources>',
        f"<project><description>{'The bell of the tide clock rang at three. ' * 20}</description></project>",
        f"<feed>\n{''.join(f'Ann: The bell rang {n} times.' + chr(10) for n in range(30))}</feed>",
    ],
)
def test_xml_that_marks_no_speech_is_reported(tmp_path, page):
    (tmp_path / "a.xml").write_text(page, "utf-8")
    (tmp_path / "b.txt").write_text("Ann: The bell rang at three.\nBob: Nobody heard it.\n", "utf-8")
    folder = read_transcripts(tmp_path)
    assert [each.path.name for each in folder.transcripts if not each.is_doubtful] == ["b.txt"]
    assert folder.failures or "XML" in " ".join(folder.doubtful[0].doubts)


def test_words_of_kaldi_get_the_speaker_of_their_segment(read):
    words = [{"word": word, "start": float(at), "end": at + 0.9, "punct": word} for at, word in enumerate(SAID)]
    spans = [
        {"@type": "Segment", "start": start, "duration": 3.0, "speaker": {"@id": label, "gender": "F"}}
        for start, label in ((0.0, "S0"), (3.0, "S1"))
    ]
    document = {
        "retval": {"words": words, "segmentation": {"speakers": [{"@id": "S0"}, {"@id": "S1"}], "segments": spans}}
    }
    assert said(read(json.dumps(document), "a.json")) == [("S0", "The bell rang"), ("S1", "Who heard it")]


def test_a_first_line_that_goes_on_in_lower_case_is_no_title(read):
    text = f"Most people do not hear the bell\n\nbecause of the wind, ladies and gentlemen.\n\n{PROSE}"
    assert "".join(text for _, text in said(read(text))).startswith("Most people do not hear the bell")


def test_sentences_before_the_first_speaker_are_doubted(read):
    top = (
        "The harbor had a bell that rang at three every day, and nobody knew who rang it. "
        "It stopped when the winter came, and all of us stood on the pier and waved at the boat."
    )
    lines = top.replace("it. It", "it.\n\nIt")
    assert read(f"Title: The Bell\n\n{lines}\n\n{TURNS * 3}").is_doubtful
    assert not read(f"Title: The Bell\n\n{TURNS * 3}").is_doubtful


@pytest.mark.parametrize("heading", ["Action Required:", "Action Items:"])
def test_what_follows_a_last_heading_of_actions_is_no_speech(read, heading):
    assert said(read(f"{TURNS}{heading}\n- Bob to wind the clock.\n"))[-1] == ("Bob", "My uncle did, every week.")


def test_names_before_a_heading_of_the_transcript_start_no_turn(read):
    pages = "Ann: a page about Ann.\n\nBob: a page about Bob.\n\n"
    assert said(read(f"{pages}TRANSCRIPT BELOW:\n\n{TURNS}"))[0] == ("Ann", "It rang at three.")


def test_a_quotation_mark_in_a_cell_does_not_swallow_the_next_rows(read):
    lines = ["It rang at three today", '" And nobody heard it', "Who wound the clock", "My uncle did every week"] * 4
    rows = "\n".join(f"{name}\t{line}" for name, line in zip(["ANN", "BOB"] * 8, lines, strict=True))
    assert "BOB" not in " ".join(text for _, text in said(read(rows, "a.tsv")))


@pytest.mark.parametrize(
    "lines",
    [
        ["If I — if I had heard it, I would have said so.", "We were — we are old.", "Nobody — nobody knew."],
        ["For example — It is a bell without a clock.", "Brilliant — We have a boat now.", "Again — The tide left."],
    ],
)
def test_dashes_within_sentences_are_no_labels(read, lines):
    assert not read("\n\n".join([PROSE, lines[0], PROSE, lines[1], MORE, lines[2]])).is_doubtful


def test_a_numbered_list_that_a_speaker_introduces_is_speech(read):
    listed = "Ann: We need five things:\n1. A bell.\n2. A clock.\n3. A boat.\n4. A pier.\n5. A tide.\n\n"
    assert not read(TURNS + listed + TURNS).is_doubtful
    assert read(TURNS + listed.replace("things:", "things.") + TURNS).is_doubtful


QUESTIONS = "".join(f"Q: {PROSE.split('. ')[n % 2]}?\nIt rang at three, said number {n}.\n\n" for n in range(4))
CODE = (
    "def find_largest(arr):\n\nlargest = [min(arr), min(arr), min(arr)]\n\nfor num in arr:\n\nif largest[0] < num:\n\n"
    "largest[2] = largest[1]\n\nlargest[1] = largest[0]\n\nlargest[0] = num\n\nelif largest[1] < num:\n\n"
    "largest[2] = largest[1]\n\nlargest[1] = num\n\nelif largest[2] < num:\n\nlargest[2] = num\n\nreturn largest[k]\n"
)
LISTED = "Sure:\n1. A bell.\n2. A clock.\n\n"
ADJACENT = "학생들: 종이 울리는 소리를 모두 들었어요\n" + "".join(
    f"면담자: 언제 {n}번 들었나요?\n학생1: 세 시에 들었어요, 아버지하고.\n" for n in range(4)
)


NAMED = f"Meeting Title: The Bell\n\nAnn (Chair): Good morning, everyone, and welcome to the talk about the bell.\n\n{TURNS}"


@pytest.mark.parametrize("text", [QUESTIONS, CODE, TURNS + LISTED + TURNS, ADJACENT, NAMED])
def test_signs_that_a_text_was_misread_are_reported(read, text):
    transcript = read(text)
    assert transcript.is_doubtful or transcript.turns[0].speaker in ("학생들", "Ann (Chair)")
