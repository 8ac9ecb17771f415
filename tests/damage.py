"""Random damage to the files of a folder, by seed: what disks, copies and mistakes do to a run."""

import json
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

KINDS = ("flip", "truncate", "empty", "missing", "swap", "foreign")


@dataclass(frozen=True)
class Damage:
    """What was done, and to which files."""

    kind: str
    files: Sequence[Path]
    """Relative to the folder. Two files that were exchanged, else one."""

    def is_named_in(self, message: str) -> bool:
        """Whether a message has the name of a damaged file, or the name of a checkpoint or model that it belongs to."""
        return any(part in message for file in self.files for part in (file.name, *file.parts[:-1][-2:]))


def change_type(folder: Path, seed: int) -> Damage:
    """Replaces one value in one JSON or YAML file of `folder`, or in a line of JSON, by a value of another type."""
    draw = random.Random(f"type-{seed}")
    files = [path for path in folder.rglob("*") if path.suffix in (".json", ".jsonl", ".yaml") and path.stat().st_size]
    file = draw.choice(sorted(files))
    lines = file.read_text("utf-8").splitlines() if file.suffix == ".jsonl" else [file.read_text("utf-8")]
    number = draw.randrange(len(lines))
    document = yaml.safe_load(lines[number]) if file.suffix == ".yaml" else json.loads(lines[number])
    places, level = [], [document]
    while level:
        found = [(part, key) for part in level for key in (part if isinstance(part, dict) else range(len(part)))]
        places += found
        level = [part[key] for part, key in found if isinstance(part[key], dict | list)]
    part, key = draw.choice(places[:400])
    part[key] = draw.choice([None, "x", -1, 10**30, [], {}, {"a": [None]}, True, "", 1e308, [[1]], float("nan")])
    lines[number] = yaml.safe_dump(document) if file.suffix == ".yaml" else json.dumps(document)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return Damage("type", (file.relative_to(folder),))


def damage(folder: Path, other: Path, seed: int, kinds: Sequence[str] = KINDS) -> Damage:
    """Damages one or two files of `folder`. `other`: another run, whose file of the same name replaces one (`foreign`)."""
    draw = random.Random(f"damage-{seed}")
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    kind, file = kinds[seed % len(kinds)], draw.choice(files)
    data = bytearray(file.read_bytes())
    name = file.relative_to(folder)
    if kind == "flip":
        place = draw.randrange(len(data))
        data[place] ^= 1 << draw.randrange(8)
        file.write_bytes(data)
    elif kind == "truncate":
        file.write_bytes(data[: draw.randrange(len(data))])
    elif kind == "empty":
        file.write_bytes(b"")
    elif kind == "missing":
        file.unlink()
    elif kind == "swap":
        second = draw.choice([path for path in files if path.read_bytes() != data])
        file.write_bytes(second.read_bytes())
        second.write_bytes(data)
        return Damage(kind, (name, second.relative_to(folder)))
    else:
        differing = [
            path
            for path in files
            if (theirs := other / path.relative_to(folder)).is_file() and theirs.read_bytes() != path.read_bytes()
        ]
        file = draw.choice(differing)
        name = file.relative_to(folder)
        shutil.copyfile(other / name, file)
    return Damage(kind, (name,))
