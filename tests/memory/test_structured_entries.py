"""Tables and JSON: columns and keys of known and unknown names, entries that are no turns of one conversation."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from csv import field_size_limit

import pytest
from read_texts import said

from midthought.errors import TranscriptError
from midthought.memory.transcripts import read_transcript

TURNS = [
    ("Ann Lee", "So the bell rang at three, and nobody was there."), ("Bob Reece", "I think that is right: the clock was fast."),
    ("Ann Lee", "We had no idea, and what did you do?"), ("Bob Reece", "It cost five dollars, and took two days."),
    ("Ann Lee", "That is the tide clock in the hall."), ("Bob Reece", "Nobody went out for three weeks after that."),
]  # fmt: skip


def csv(head, *columns):
    rows = [
        ",".join(f'"{cell}"' if "," in str(cell) else str(cell) for cell in row) for row in zip(*columns, strict=True)
    ]
    return "\n".join(([head] if head else []) + rows) + "\n"


NAMES, TEXTS = zip(*TURNS, strict=True)


def test_a_table_without_a_column_named_as_text_or_speakers_is_doubtful(read):
    titles = [f"The bell of the tide clock, part {n}" for n in range(6)]
    levels = ["h", "m", "h", "l", "h", "m"]
    for head, columns in {
        "year,title": (range(1990, 1996), titles),
        ",SIT,CON": (titles, levels, levels[::-1]),
    }.items():
        transcript = read(csv(head, *columns), "a.csv")
        assert transcript.is_doubtful, head
        assert "title" not in transcript.turns[0].text  # the name of a column is no speech


@pytest.mark.parametrize("head", ["episode_id,Amazon Transcript", "row,raw_sentence", "n,speechText"])
def test_a_word_of_a_heading_names_the_text(read, head):
    transcript = read(csv(head, [1, 3, 4, 6, 7, 9], TEXTS), "a.csv")
    assert said(transcript) == [("Unknown Speaker", " ".join(TEXTS))] and not transcript.is_doubtful


def test_a_line_of_sentences_and_its_number_without_headings(read):
    transcript = read(csv("", range(6), TEXTS), "a.csv")
    assert said(transcript) == [("Unknown Speaker", " ".join(TEXTS))] and not transcript.is_doubtful


def test_a_remark_above_the_names_of_the_columns(read):
    rows = "\n".join(f"{name}\t{n}\t{n + 1}\t{text}\t" for n, (name, text) in enumerate(TURNS))
    text = (
        f"See our site for more.\t\t\t\t\nSpeaker\tStart time (seconds after the bell)\tEnd time\tText\tNote\n{rows}\n"
    )
    assert said(read(text, "a.tsv")) == TURNS


def test_long_cells(read):
    transcript = read(csv("speaker,text", NAMES, ["So it rang. " * 20_000, *TEXTS[1:]]), "a.csv")
    assert len(transcript.turns) == 6


def test_the_colon_of_a_label_is_no_part_of_it_and_a_label_in_the_text_is_no_word(read):
    transcript = read(csv("speaker,words", [f"{name}:" for name in NAMES], TEXTS), "a.csv")
    assert said(transcript) == TURNS
    entries = [{"speaker": name, "text": f"{name}: {text}"} for name, text in TURNS]
    assert said(read(json.dumps(entries), "a.json")) == TURNS


def test_rows_without_words_need_no_speaker(read):
    rows = csv("start,speaker,text", range(12), [*NAMES, "", *NAMES[:5]], [*TEXTS, " ", *TEXTS[:5]])
    assert not read(rows, "a.csv").is_doubtful


def test_signs_of_bold_text_in_json_are_no_words(read):
    entries = [{"speaker": name, "text": f"**{text} **Yes, 2 ** 3."} for name, text in TURNS]
    assert read(json.dumps(entries), "a.json").turns[0].text == f"{TEXTS[0]} Yes, 2 ** 3."


def test_translations_beside_the_text(read):
    entries = [{"time": n, "text": text, "german": f"Wort{n} " * 8} for n, text in enumerate(TEXTS)]
    transcript = read(json.dumps(entries), "a.json")
    assert transcript.turns[0].text == " ".join(TEXTS) and not transcript.is_doubtful
    pairs = [
        {"en": line, "zh": "钟响了三次，没有人在那里"} for turn in TURNS for line in (f"{turn[0]}--Baker", turn[1])
    ]
    transcript = read(json.dumps({"meta": {"year": "2024"}, "pairs": pairs}), "a.json")
    assert said(transcript) == TURNS and not transcript.is_doubtful


def test_who_asks_and_answers(read):
    pairs = [{"question": TEXTS[2], "asker": "Ann", "timestamp": "13:42", "answer": TEXTS[3], "responder": "Bob"}]
    transcript = read(json.dumps({"qa_pairs": pairs}), "a.json")
    assert said(transcript) == [("Ann", TEXTS[2]), ("Bob", TEXTS[3])] and transcript.turns[0].time == "00:13:42"


def test_several_transcripts_in_one_file_stay_in_order_and_are_reported(read):
    def segments(start):
        return [{"speaker": name, "start": 10 * n, "text": text} for n, (name, text) in enumerate(TURNS[start:])]

    transcripts = [{"title": f"{n}", "segments": segments(n)} for n in range(3)]
    transcript = read(json.dumps({"transcripts": transcripts}), "a.json")
    assert [turn.text for turn in transcript.turns][:5] == list(TEXTS[:5]) and transcript.is_doubtful


@pytest.mark.parametrize(
    ("document", "doubt"),
    [
        ([{"name": f"SID{n}", "value": f"84666_{n}_52%"} for n in range(30)], "texts are no words"),
        (
            [{"name": f"Sketch {'ABCDEFGH'[n]}", "transcript": text} for n, text in enumerate(TEXTS)],
            "label occurs once",
        ),
        ([{"speaker": f"S{n % 2}", "start": n, "text": "" if n % 3 else TEXTS[0]} for n in range(12)], "no words"),
        ({"body": "City Council Meeting", "date": "2026-05-14"}, "words"),
    ],
)
def test_entries_that_are_no_turns_are_reported(read, document, doubt):
    transcript = read(json.dumps(document), "a.json")
    assert transcript.is_doubtful and doubt in " ".join(transcript.doubts)


def test_times_of_speakers_without_words_are_refused(read):
    entries = [{"speaker": f"SPEAKER_0{n % 2}", "start": 3 * n, "end": 3 * n + 2} for n in range(6)]
    with pytest.raises(TranscriptError, match="who speaks when, but have no words"):
        read(json.dumps({"segments": entries}), "a.json")


def test_transcripts_one_after_another_without_speakers_are_reported(read):
    words = [{"text": word, "timestamp": 400 * n} for n, word in enumerate(" ".join(TEXTS).split())]
    calls = [{"id": n, "transcript": words} for n in range(4)]
    transcript = read(json.dumps(calls), "a.json")
    assert transcript.is_doubtful and "start again 3 times" in " ".join(transcript.doubts)


def test_keys_that_have_names_of_languages_and_no_text_are_no_translations(read):
    entries = [{"id": f"a{n}", "no": str(n), "remark": text, "who": name} for n, (name, text) in enumerate(TURNS)]
    assert said(read(json.dumps(entries), "a.json")) == TURNS


def test_stars_of_a_program_in_json_are_words(read):
    entries = [{"speaker": name, "text": f"{text} It takes **options."} for name, text in TURNS]
    assert read(json.dumps(entries), "a.json").turns[0].text == f"{TEXTS[0]} It takes **options."


@pytest.fixture
def _threads_switch_often():
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("_threads_switch_often")
def test_threads_that_read_tables_keep_the_limit_of_cells(tmp_path):
    table = tmp_path / "a.csv"
    table.write_text("length,width,height\n" + '1,"2",3\n' * 4_000, "utf-8")  # refused as soon as its cells are read

    def reading(number: int) -> None:
        with pytest.raises(TranscriptError):
            read_transcript(table)

    before = field_size_limit()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(reading, range(24)))
    assert field_size_limit() == before


@pytest.mark.parametrize("are_wrapped", [True, False])
def test_a_list_of_lines_of_captions(read, are_wrapped):
    words = (" ".join(TEXTS) * 3).split()
    entries = [" ".join(words[n : n + 5]) for n in range(0, len(words), 5)] if are_wrapped else list(TEXTS) * 3
    transcript = read(json.dumps(entries), "a.json")
    assert transcript.num_words == len(" ".join(entries).split()) and transcript.is_doubtful != are_wrapped


def test_the_column_of_text_has_a_name_in_another_language(read):
    transcript = read(csv("Waktu (detik),Selesai (detik),Teks", range(6), range(1, 7), TEXTS), "a.csv")
    assert [turn.text for turn in transcript.turns] == [" ".join(TEXTS)] and not transcript.is_doubtful


@pytest.mark.parametrize("keys", [("id", "name"), ("speakerId", "name"), ("speaker_label", "displayName")])
def test_a_list_of_speakers_has_the_names_of_labels_under_every_key(read, keys):
    label, name = keys
    speakers = [{label: "speaker_1", name: "Ann Lee", "email": "ann@bell"}, {label: "speaker_2", name: "Bob Reece"}]
    key = "speaker" if label == "id" else label
    turns = [{key: f"speaker_{1 + (who != 'Ann Lee')}", "text": text} for who, text in TURNS]
    assert said(read(json.dumps({"speakers": speakers, "transcript": turns}), "a.json")) == TURNS


def test_a_list_that_python_has_printed(read):
    entries = [{"speaker": who, "text": text, "start": n * 3.5, "note": None} for n, (who, text) in enumerate(TURNS)]
    transcript = read(repr(entries), "a.json")
    assert said(transcript) == TURNS and not transcript.is_doubtful


def test_a_long_list_that_python_has_printed_is_refused_before_it_takes_memory(read):
    with pytest.raises(
        TranscriptError, match=r"printed by Python.*more than 1048576 characters; write it with json\.dump"
    ):
        read(f"['a', {'1, ' * 400_000}]", "a.json")


@pytest.mark.parametrize("text", ["0,1,2\n", ",0,1\n,,\n", ",,,\n,,,\n"])
def test_a_table_without_values_is_refused(read, text):
    with pytest.raises(TranscriptError, match=r"it has no rows with values|no column for the text"):
        read(text, "a.csv")


def test_every_label_of_a_speaker_has_the_name(read):
    speakers = [
        {"id": f"u-{n}", "role": "guest", "speaker_label": f"spk_{n}", "name": who}
        for n, who in enumerate(("Ann Lee", "Bob Reece"))
    ]
    turns = [{"speaker": f"spk_{int(who != 'Ann Lee')}", "text": text} for who, text in TURNS]
    assert said(read(json.dumps({"speakers": speakers, "segments": turns}), "a.json")) == TURNS


def test_a_label_of_several_speakers_has_no_name(read):
    speakers = [{"id": n, "label": "Guest", "name": who} for n, who in enumerate(("Ann Lee", "Bob Reece"))]
    turns = [{"speaker": ("Guest", "Host")[n % 2], "text": text} for n, text in enumerate(TEXTS)]
    transcript = read(json.dumps({"speakers": speakers, "segments": turns}), "a.json")
    assert {turn.speaker for turn in transcript.turns} == {"Guest", "Host"}


def test_numbers_above_the_columns_are_no_row(read):
    transcript = read(csv("0,1,2", NAMES, [n * 2.5 for n in range(6)], TEXTS), "a.csv")
    assert said(transcript) == TURNS


def test_tags_of_emphasis_in_cells_are_no_words(read):
    marked = [text.replace("the", "<b>the</b>").replace("was", "<i>was</i>") for text in TEXTS]
    transcript = read(csv("speaker,start,text", NAMES, range(6), marked), "a.csv")
    assert said(transcript) == TURNS and not transcript.is_doubtful
