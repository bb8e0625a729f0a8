import ast
import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.engine_plugin import bundle
from agent.engine_plugin_command import PLUGINS
from agent.sitsctl import main

OLDEST_PYTHON = (3, 10)


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    made = bundle("controller.plugins.vllm", "sits_vllm")
    with zipfile.ZipFile(io.BytesIO(made)) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_the_same_sources_make_the_same_bytes() -> None:
    assert bundle("controller.plugins.vllm", "sits_vllm") == bundle(
        "controller.plugins.vllm", "sits_vllm"
    )


def test_nothing_but_the_package_the_standard_library_and_vllm_is_imported(
    sources: dict[str, str],
) -> None:
    allowed = {*sys.stdlib_module_names, "sits_vllm", "vllm"}
    for name, source in sources.items():
        assert name.startswith("sits_vllm/")
        for node in ast.walk(ast.parse(source)):
            modules = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            assert {module.partition(".")[0] for module in modules} <= allowed, name


def test_each_source_is_one_that_python_3_10_reads(sources: dict[str, str]) -> None:
    for source in sources.values():
        ast.parse(source, feature_version=OLDEST_PYTHON)


def test_a_plain_python_imports_it_from_the_zip_alone(tmp_path: Path) -> None:
    (tmp_path / "sits_vllm.zip").write_bytes(bundle("controller.plugins.vllm", "sits_vllm"))
    said = subprocess.run(
        [sys.executable, "-S", "-P", "-c", "import sits_vllm; print(sits_vllm.Scheduler.__name__)"],
        env={"PYTHONPATH": str(tmp_path / "sits_vllm.zip")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "Scheduler\n"


@pytest.mark.parametrize("engine", PLUGINS)
def test_the_command_writes_the_file_and_says_how_to_use_it(engine: str, tmp_path: Path) -> None:
    file = tmp_path / "made.zip"
    said = CliRunner().invoke(main, ["engine-plugin", engine, "--output", str(file)])
    assert said.exit_code == 0
    assert zipfile.is_zipfile(file)
    assert f"PYTHONPATH={file}" in said.output
    assert "--scheduler-cls sits_vllm.Scheduler" in said.output


def test_a_file_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    file = tmp_path / "nowhere" / "made.zip"
    said = CliRunner().invoke(main, ["engine-plugin", "vllm", "--output", str(file)])
    assert said.exit_code == 1
    assert "could not write plug-in" in said.output
