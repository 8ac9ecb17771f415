"""PDF files with damage."""

import re
import subprocess
import sys

import pytest
from test_documents import pdf
from test_reading_signals import EXPECTED


def test_a_damaged_pdf_prints_nothing(tmp_path):
    pytest.importorskip("pypdf")
    path = tmp_path / "a.pdf"
    whole = pdf([[f"{name}: {text}" for name, text in EXPECTED]])
    path.write_bytes(re.sub(rb"startxref\n\d+", b"startxref\n7", whole))
    program = f"from midthought.memory.transcripts import read_transcript as r; print(len(r({str(path)!r}).turns))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.split() == [b"8"] and done.stderr == b""
