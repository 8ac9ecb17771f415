import pytest

from midthought.errors import SettingsError
from midthought.memory.tool import NOTHING_FOUND, MemoryRetrievalTool, format_chunk


def test_the_result_is_one_numbered_line_for_each_chunk(store, chunks):
    output = MemoryRetrievalTool(store, mode="full_text").execute(query="the wheel, in the café, and a mitten", k=2)
    assert output.text == f"[1] {format_chunk(chunks[3])}\n[2] {format_chunk(chunks[2])}"
    assert output.metadata == {"chunk_ids": ["tide_3", "tide_2"]}
    output = MemoryRetrievalTool(store, mode="full_text").execute(query="xylophone")
    assert (output.text, output.metadata) == (NOTHING_FOUND, {"chunk_ids": []})


def test_k_is_the_constructors_unless_the_call_says_otherwise(store):
    tool = MemoryRetrievalTool(store, k=2, mode="vector")
    assert len(tool.execute(query="yes").metadata["chunk_ids"]) == 2
    assert len(tool.execute(query="yes", k=4).metadata["chunk_ids"]) == 4
    schema = tool.definition.parameters_schema()
    assert schema["required"] == ["query"] and schema["properties"]["k"]["default"] == 2
    for parameters, words in (({"query": " "}, "empty"), ({"query": "x", "k": 11}, "1 to 10")):
        with pytest.raises(ValueError, match=words):
            tool.execute(**parameters)
    with pytest.raises(SettingsError, match="from 1 to 10, not 0"):
        MemoryRetrievalTool(store, k=0)
