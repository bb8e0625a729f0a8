"""The plug-ins that run inside an engine, each as one file to put on its PYTHONPATH."""

import ast
import io
import zipfile
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).parents[1]
EPOCH: Final = (1980, 1, 1, 0, 0, 0)
"""What each file in a zip is dated: the same sources make the same bytes."""

_OURS: Final = "controller"


def bundle(plugin: str, package: str) -> bytes:
    """A zip with `plugin`, a package of ours, under the name `package`, and all it imports of ours.

    The sources stay readable: only the names in their imports change.
    """
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for module, path in sorted(_needed(plugin).items()):
            name = _renamed(module, plugin, package).replace(".", "/")
            suffix = "/__init__.py" if path.name == "__init__.py" else ".py"
            entry = zipfile.ZipInfo(name + suffix, EPOCH)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, _rewritten(path.read_text(), plugin, package))
    return made.getvalue()


def _needed(plugin: str) -> dict[str, Path]:
    """Every module of ours that `plugin` imports, and the packages they are in."""
    found: dict[str, Path] = {}
    todo = [plugin]
    while todo:
        module = todo.pop()
        if module in found or module == _OURS:
            continue
        found[module] = path = _path(module)
        todo += _imported(path.read_text())
        todo.append(module.rpartition(".")[0])
    return found


def _path(module: str) -> Path:
    path = SOURCES.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _imported(source: str) -> list[str]:
    """The modules of ours that a source imports, all as `from module import …`."""
    return [
        node.module
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(_OURS)
    ]


def _renamed(module: str, plugin: str, package: str) -> str:
    if module == plugin or module.startswith(plugin + "."):
        return package + module.removeprefix(plugin)
    return package + module.removeprefix(_OURS)


def _rewritten(source: str, plugin: str, package: str) -> str:
    """`source` with its imports renamed, line by line, so that nothing else moves."""
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(_OURS):
            line = node.lineno - 1
            lines[line] = lines[line].replace(
                f"from {node.module} import",
                f"from {_renamed(node.module, plugin, package)} import",
            )
    return "".join(lines)
