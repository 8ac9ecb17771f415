"""A wheel of the running midthought, for the nodes of a cluster. Does not depend on verl.

It is packed from the package's files and its installed metadata, because these are present in an editable install and in an
installed wheel alike; a build from source would need the checkout and the build requirements.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

NAME = "midthought"
_METADATA = ("entry_points.txt", "top_level.txt", "licenses/LICENSE")
_VERSION = re.compile(r"^Version: ([^+\s]+)(\S*)", re.MULTILINE)
_WHEEL = "Wheel-Version: 1.0\nGenerator: midthought\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@dataclass(frozen=True)
class Wheel:
    """A wheel that is not written yet."""

    version: str
    """The package's version with a hash of its contents as local part, such as `0.1.0+bundle.1a2b3c4d`. pip does not replace
    an installed package by a wheel of the same version, so other contents need another version."""
    files: Mapping[str, bytes]
    """Path in the wheel, and contents; without RECORD."""

    @classmethod
    def of_running_package(cls) -> Wheel:
        """Packs the package that is imported now."""
        installed, root = distribution(NAME), Path(__file__).parents[2]
        package = {
            path.relative_to(root.parent).as_posix(): path.read_bytes()
            for path in root.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
        }
        metadata = {name: text for name in _METADATA if (text := installed.read_text(name)) is not None}
        described = installed.read_text("METADATA") or installed.read_text("PKG-INFO") or ""
        return cls.pack(package, metadata | {"METADATA": described})

    @classmethod
    def pack(cls, package: Mapping[str, bytes], metadata: Mapping[str, str]) -> Wheel:
        """Packs these files of the package and of its dist-info folder; `metadata` needs `METADATA` with a `Version:`."""
        public = _VERSION.search(metadata["METADATA"])[1]  # type: ignore[index]
        described = {**metadata, "METADATA": _VERSION.sub(f"Version: {public}", metadata["METADATA"], count=1)}
        version = f"{public}+bundle.{_hash({**package, **_encoded(described)})}"
        described["METADATA"] = _VERSION.sub(f"Version: {version}", described["METADATA"], count=1)
        folder = f"{NAME}-{version}.dist-info"
        files = {f"{folder}/{name}": content for name, content in _encoded(described | {"WHEEL": _WHEEL}).items()}
        return cls(version, dict(sorted(package.items())) | files)

    @property
    def file_name(self) -> str:
        return f"{NAME}-{self.version}-py3-none-any.whl"

    def write(self, folder: Path) -> Path:
        """Writes the wheel into `folder` and returns its path."""
        folder.mkdir(parents=True, exist_ok=True)
        record = io.StringIO()
        rows = csv.writer(record, lineterminator="\n")
        with zipfile.ZipFile(folder / self.file_name, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in self.files.items():
                _add(archive, name, content)
                digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
                rows.writerow((name, f"sha256={digest}", len(content)))
            name = f"{NAME}-{self.version}.dist-info/RECORD"
            rows.writerow((name, "", ""))
            _add(archive, name, record.getvalue().encode())
        return folder / self.file_name


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    """Adds a file with a fixed time, so that equal contents make equal wheels."""
    entry = zipfile.ZipInfo(name)
    entry.external_attr = 0o644 << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, content)


def _hash(files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:8]


def _encoded(texts: Mapping[str, str]) -> dict[str, bytes]:
    return {name: text.encode() for name, text in texts.items()}
