"""One conversation in the layouts of many programs and services reads back unchanged: speakers, order, words, times."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rendered import TIMED, UNTIMED, Said, clock
from services import NAMED, NUMBERED, as_json, labels

from midthought.memory.transcripts import read_transcript

VOICES = [
    ("Ann Lee", "Bob"), ("Speaker 1", "Speaker 2"), ("SPEAKER_00", "SPEAKER_01"), ("Zoë Müller-Sim", "Dr. Ray O'Neil", "Host"),
    ("John van der Berg", "Mary-Ann St. James"), ("INTERVIEWER", "MAN 1"), ("דנה כהן", "יוסי"), ("محمد", "سارة العلي"),
    ("主持人", "田中さん"), ("Иван Петров", "Анна"), ("김민수", "진행자"), ("राम", "सीता देवी"), ("Q", "A"),
]  # fmt: skip
SENTENCES = [
    "So the bell rang at three, and nobody was there.", "I think that is right: the clock was fast.",
    "We had no idea. What did you do?", "Remember, in 1998 it cost $5.50 and took two days.", "Yes.",
    "The tide clock is old. Is it? I doubt it!", "好的，我们开始吧。它是什么？", 
    "נכון מאוד, לא ידעתי את זה.", "نعم، هذا صحيح. ما رأيك؟",
    "That reminds me of the summer in Oslo, when we were young and everything was new and bright.",
]  # fmt: skip


@st.composite
def conversations(draw: st.DrawFn) -> list[Said]:
    names = draw(st.sampled_from(VOICES))
    texts = draw(st.lists(st.lists(st.sampled_from(SENTENCES), min_size=1, max_size=4), min_size=4, max_size=14))
    gaps = draw(st.lists(st.integers(4, 300), min_size=len(texts), max_size=len(texts)))
    turns: list[Said] = []
    for number, (sentences, gap) in enumerate(zip(texts, gaps, strict=True)):
        start = (turns[-1].seconds if turns else 3) + gap
        turns.append(Said(names[number % len(names)], " ".join(sentences), start))
    return turns


def read_back(folder, name: str, text: str) -> list[tuple[str, str, str | None]]:
    path = folder / name
    path.write_text(text, "utf-8")
    transcript = read_transcript(path)
    assert not transcript.is_doubtful, transcript.doubts
    return [(turn.speaker, turn.text, turn.time) for turn in transcript.turns]


several = settings(
    max_examples=6,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.mark.parametrize("layout", UNTIMED)
@several
@given(turns=conversations())
def test_a_conversation_without_times_reads_back_unchanged(tmp_path, layout, turns):
    name, render = UNTIMED[layout]
    assert read_back(tmp_path, name, render(turns)) == [(turn.speaker, turn.words, None) for turn in turns]


@pytest.mark.parametrize("layout", TIMED)
@several
@given(turns=conversations())
def test_a_conversation_with_times_reads_back_unchanged(tmp_path, layout, turns):
    name, render = TIMED[layout]
    expected = [(turn.speaker, turn.words, clock(turn.seconds)) for turn in turns]
    assert read_back(tmp_path, name, render(turns)) == expected


@pytest.mark.parametrize("service", [*NAMED, *NUMBERED])
@several
@given(turns=conversations())
def test_the_json_of_a_service_reads_back_unchanged(tmp_path, service, turns):
    render, pattern, first = NUMBERED.get(service) or (NAMED[service], "", 0)
    who = {name: pattern.format(number + first) if pattern else name for name, number in labels(turns).items()}
    expected = [(who[turn.speaker], turn.words, clock(turn.seconds)) for turn in turns]
    assert read_back(tmp_path, "a.json", as_json(render(turns))) == expected


def test_the_lines_of_a_json_text_are_read_as_lines(tmp_path):
    text = "".join(f"{name}: Line {n} of it.\n" for n, name in enumerate(["Ann", "Bob"] * 3))
    assert [name for name, _, _ in read_back(tmp_path, "a.json", json.dumps({"text": text}))] == ["Ann", "Bob"] * 3


@pytest.mark.parametrize(("unit", "times"), [(1, ["00:00:00", "00:01:00"]), (1000, ["00:00:00", "00:01:00"])])
def test_the_unit_of_times_follows_from_the_time_per_word(tmp_path, unit, times):
    said = "It rang." if unit == 1 else "It rang at three and nobody was there to hear it at all."
    segments = [
        {"speaker": who, "start": 60 * n * unit, "end": 60 * n * unit + 50 * unit, "text": said}
        for n, who in enumerate("AB")
    ]
    assert [time for _, _, time in read_back(tmp_path, "a.json", json.dumps({"utterances": segments}))] == times


def test_a_cut_json_file_is_read_up_to_its_last_complete_entry_and_reported(tmp_path):
    turns = [Said(f"{'Ann' if n % 2 else 'Bob'}", f"Line {n} of it.", 5 * n) for n in range(20)]
    path = tmp_path / "a.json"
    text = json.dumps(NAMED["podcast namespace"](turns), indent=1)
    path.write_text(text[: text.index("Line 12") + 3])
    transcript = read_transcript(path)
    assert [turn.text for turn in transcript.turns] == [f"Line {n} of it." for n in range(12)]
    assert transcript.is_doubtful and "the JSON is damaged at line" in transcript.doubts[0]
