"""Lines at the edges of speech: links above it, a publisher's lines below it, tags of a corpus and arrows within it."""

from read_texts import said

TALK = (
    "The ferry was late again, so I walked to the mill and waited there with the others until the fog was gone. "
    "We spoke about the new bridge, and nobody believed that it would be ready before the winter. "
)
MORE = "In the end I rowed across myself, and my sister laughed about the wet shoes for the rest of the week."


def test_an_arrow_within_a_sentence_is_another_speaker_if_most_arrows_follow_sentences(read):
    text = f"{TALK}>> Yes. >> I think everybody >> the best rowers stay. >> Right. >> {MORE}"
    assert said(read(text)) == [
        ("Unknown Speaker", TALK.strip()), ("Unknown Speaker", "Yes."), ("Unknown Speaker", "I think everybody"),
        ("Unknown Speaker", "the best rowers stay."), ("Unknown Speaker", "Right."), ("Unknown Speaker", MORE),
    ]  # fmt: skip


def test_arrows_of_menus_stay_words(read):
    text = f"Press File >> Open and then Tools >> Fonts, as my sister did. {TALK}{MORE}"
    assert [words for _, words in said(read(text))] == [text]


def test_a_title_and_an_address_above_prose_are_no_speech(read):
    transcript = read(f"May 26 - Ann Lee on the Ferry\n\nhttps://ferry.org/watch?v=1234\n\n{TALK}\n\n{MORE}\n")
    assert said(transcript) == [("Unknown Speaker", f"{TALK}{MORE}")]
    assert [value for _, value in transcript.header] == [
        "May 26 - Ann Lee on the Ferry",
        "https://ferry.org/watch?v=1234",
    ]
    assert not transcript.is_doubtful


def test_a_publishers_lines_below_prose_are_no_speech(read):
    page = f"<h1>The Ferry</h1><p>{TALK * 5}</p><p>{MORE}</p>"
    foot = "<div><div>© 2020 Ferry House | Contact us</div></div><p>We use cookies on this site. More info.</p><b>Got it!</b>"
    transcript = read(f"<!doctype html><html><body>{page}{foot}</body></html>", "a.html")
    assert said(transcript) == [("Unknown Speaker", f"{TALK * 5}{MORE}")]
    lines = {skip.text for skip in transcript.skipped}
    assert {"© 2020 Ferry House | Contact us", "We use cookies on this site. More info.", "Got it!"} <= lines


def test_speech_after_a_sign_of_rights_stays(read):
    text = f"{TALK}\n\nAll rights reserved, it said on the sign.\n\n{MORE}\n\n{TALK}\n\n{MORE}"
    assert "All rights reserved, it said" in said(read(text))[0][1]


def test_tags_of_a_corpus_between_turns_are_no_speech(read):
    things = ["ferry", "mill", "bridge", "fog", "boat"]
    text = "".join(f"<TXT=mill{n}>\n\nE: And the {a}?\nL: I saw the {a}, as you did.\n\n" for n, a in enumerate(things))
    transcript = read(text)
    assert transcript.speakers == ("E", "L") and len(transcript.turns) == 10
    assert not any("TXT" in words for _, words in said(transcript))
    assert {skip.text for skip in transcript.skipped} >= {"<TXT=mill2>"}
