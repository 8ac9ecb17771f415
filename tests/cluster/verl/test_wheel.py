"""The wheel in a bundle: pip installs it from anywhere, and it is the package that wrote the bundle."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pydantic
import pytest
from test_bundle import job

from midthought.cluster.verl import wheel
from midthought.cluster.verl.bundle import write_bundle
from midthought.cluster.verl.settings import VerlConfig
from midthought.cluster.verl.wheel import Wheel


def test_the_wheel_holds_the_package_with_its_data_and_its_metadata(tmp_path: Path) -> None:
    made = Wheel.of_running_package()
    path = made.write(tmp_path)
    assert path.name == f"midthought-{made.version}-py3-none-any.whl"
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        names = set(archive.namelist())
        metadata = archive.read(f"midthought-{made.version}.dist-info/METADATA").decode()
        assert archive.read("midthought/cluster/verl/wheel.py") == Path(wheel.__file__).read_bytes()
    assert {"midthought/py.typed", "midthought/report/report.html", "midthought/recipes/podcast/cluster.yaml"} <= names
    assert not [name for name in names if "__pycache__" in name]
    assert f"\nVersion: {made.version}\n" in metadata and "Provides-Extra: memory" in metadata


def test_equal_contents_have_equal_names_and_bytes_and_other_contents_another_version(tmp_path: Path) -> None:
    first, second = Wheel.of_running_package(), Wheel.of_running_package()
    assert first.write(tmp_path / "a").read_bytes() == second.write(tmp_path / "b").read_bytes()
    assert first.version == second.version and first.version.startswith("0.1.0+bundle.")

    def version_of(content: bytes, version: str = "1.2") -> str:
        return Wheel.pack({"midthought/a.py": content}, {"METADATA": f"Name: midthought\nVersion: {version}\n"}).version

    assert version_of(b"x = 1") != version_of(b"x = 2")
    assert version_of(b"x = 1") == version_of(b"x = 1", "1.2+bundle.12345678")  # packed again from an installed bundle


@pytest.mark.slow
def test_pip_installs_the_requirements_from_another_folder_and_the_import_is_the_bundles(tmp_path: Path) -> None:
    bundle = tmp_path / "my bundle"
    write_bundle(job(), VerlConfig(), bundle)
    ours = [line for line in (bundle / "requirements.txt").read_text().splitlines() if not line.startswith("verl")]
    (bundle / "ours.txt").write_text("\n".join(ours))
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    [packages] = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(str(Path(pydantic.__file__).parents[1]))  # found after the venv's own
    install = [python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "-r", bundle / "ours.txt"]
    subprocess.run(install, cwd=tmp_path, check=True)
    code = (
        "import midthought; from midthought.cluster.verl.wheel import Wheel; from importlib.metadata import version; "
        "print(midthought.__file__, version('midthought'), Wheel.of_running_package().version)"
    )
    done = subprocess.run([python, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    path, installed, packed_again = done.stdout.split()
    assert Path(path).is_relative_to(packages)
    assert installed == packed_again == Wheel.of_running_package().version
    assert (packages.parents[2] / "bin" / "midthought").exists()
