"""Timed annotations of programs."""

from read_texts import said


def test_annotations_of_programs_are_read_by_tier_and_time(read):
    slots = "".join(f'<TIME_SLOT TIME_SLOT_ID="ts{n}" TIME_VALUE="{1000 * n}"/>' for n in range(1, 5))

    def tier(name: str, annotations: dict[int, str]) -> str:
        found = "".join(
            f'<ALIGNABLE_ANNOTATION TIME_SLOT_REF1="ts{n}"><ANNOTATION_VALUE>{text}</ANNOTATION_VALUE></ALIGNABLE_ANNOTATION>'
            for n, text in annotations.items()
        )
        return f'<TIER PARTICIPANT="{name}" TIER_ID="x">{found}</TIER>'

    tiers = tier("Ann", {1: "So it rang.", 3: "At &quot;three&quot;, yes."}) + tier("Bob", {2: "Did it?"})
    eaf = read(f'<?xml version="1.0"?>\n<ANNOTATION_DOCUMENT>{slots}{tiers}</ANNOTATION_DOCUMENT>', "a.eaf")
    expected = [("Ann", "So it rang."), ("Bob", "Did it?"), ("Ann", 'At "three", yes.')]
    assert said(eaf) == expected and [turn.time for turn in eaf.turns] == ["00:00:01", "00:00:02", "00:00:03"]

    def intervals(name: str, texts: dict[int, str]) -> str:
        found = "".join(
            f'        xmin = {n}.5\n        xmax = {n + 1}\n        text = "{text}"\n' for n, text in texts.items()
        )
        return f'    name = "{name}"\n    xmin = 0\n{found}'

    grid = intervals("Ann", {1: "So it rang.", 2: "", 3: 'At ""three"", yes.'}) + intervals("Bob", {2: "Did it?"})
    assert said(read(f'File type = "ooTextFile"\nObject class = "TextGrid"\n\n{grid}', "a.TextGrid")) == expected
    captions = '<?xml version="1.0"?><transcript><text start="1.2" dur="2">It&amp;#39;s three.</text><text start="5">Yes.</text>'
    assert said(read(f"{captions}</transcript>", "a.srv1")) == [("Unknown Speaker", "It's three. Yes.")]
