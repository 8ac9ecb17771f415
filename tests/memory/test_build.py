import pytest

from midthought.errors import MemoryStoreError
from midthought.memory.build import build_memory, chunk_all
from midthought.memory.inspection import summary_rows
from midthought.memory.store import MemoryStore
from midthought.memory.transcripts import read_transcripts


@pytest.fixture
def episodes(tmp_path):
    folder = tmp_path / "episodes"
    folder.mkdir()
    (folder / "tide.md").write_text(
        "# The Tide Clock\n\n**Ann:** \\[00:07\\] One copper hand.\n\n**Bob:** No numerals.\n"
    )
    (folder / "bell.txt").write_text("Ann (00:01): A bell of bronze.\n")
    return folder


def test_a_folder_becomes_a_memory_and_building_again_changes_nothing(tmp_path, episodes, embedder):
    report = build_memory(episodes, tmp_path / "memory", embedder=embedder)
    assert (report.num_added, report.num_kept, report.num_removed) == (3, 0, 0)
    again = build_memory(episodes, tmp_path / "memory", embedder=embedder)
    assert (again.num_added, again.num_kept, again.num_removed) == (0, 3, 0)
    (hit,) = MemoryStore.open(tmp_path / "memory").search("copper hand", k=1, mode="full_text")
    assert (hit.chunk_id, hit.speaker, hit.episode, hit.time) == ("tide_0", "Ann", "The Tide Clock", "00:00:07")


def test_what_is_gone_leaves_the_memory_only_on_request_and_files_are_added_and_changed_without_a_word(
    tmp_path, episodes, embedder
):
    build_memory(episodes, tmp_path / "memory", embedder=embedder)
    (episodes / "bell.txt").rename(episodes / "mill.txt")
    (episodes / "mill.txt").write_text("Cid (00:01): A mill without a wheel.\n")
    embedder.embedded.clear()
    with pytest.raises(MemoryStoreError, match=r"1 chunks of 1 other transcripts \(bell\) would be removed.*--replace"):
        build_memory(episodes, tmp_path / "memory", embedder=embedder)
    assert embedder.embedded == [] and len(MemoryStore.open(tmp_path / "memory")) == 3
    report = build_memory(episodes, tmp_path / "memory", embedder=embedder, replace=True)
    assert (report.num_added, report.num_kept, report.num_removed) == (1, 2, 1)
    (episodes / "quay.txt").write_text("Eve (00:01): A quay of stone.\n")
    (episodes / "tide.md").write_text("# The Tide Clock\n\n**Ann:** One copper hand.\n")
    report = build_memory(episodes, tmp_path / "memory", embedder=embedder)
    assert (report.num_added, report.num_kept, report.num_removed) == (2, 1, 2)


def test_a_file_that_cannot_be_read_is_named_and_the_others_go_on(tmp_path, episodes, embedder, caplog):
    (episodes / "zero.json").write_text("{")
    assert build_memory(episodes, tmp_path / "memory", embedder=embedder).num_added == 3
    assert "zero.json: it is not valid JSON" in caplog.text
    folder = read_transcripts(episodes)
    assert summary_rows(folder, chunk_all(folder.transcripts))[-1] == ("all", 2, 2, 2, 3, 9, 3)
