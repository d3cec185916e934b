"""What the packages and the commands import: nothing heavy before it is needed. Module names are compared, not times."""

from __future__ import annotations

import ast
import importlib
import inspect
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import coordinator
import coordinator.cli.app
import workers
import workers.cli.app

ROOT = Path(__file__).parents[3]
OTHERS = {"asyncio", "cronsim", "hiredis", "msgpack", "opentelemetry", "redis", "rich", "ssl", "tenacity"}
COMMANDS = [
    (app, lazy)
    for app in (coordinator.cli.app.app, workers.cli.app.app)
    for lazy in typer.main.get_command(app).lazy_commands  # type: ignore[attr-defined]  # the class of our groups has them
]


def imported_by(code: str) -> set[str]:
    """Return the modules that a new interpreter has loaded after the code."""
    after = "\nimport sys; print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code + after], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def own(modules: set[str]) -> set[str]:
    return {name for name in modules if name.partition(".")[0] in ("coordinator", "workers")}


@pytest.mark.parametrize("package", ["coordinator", "workers"])
def test_import_of_a_package_imports_nothing_else(package: str) -> None:
    found = imported_by(f"import {package}")
    assert found & {*OTHERS, "typer"} == set()
    assert own(found) == {"coordinator", "coordinator.lazy", package}


@pytest.mark.parametrize("program", ["coordinator", "workers"])
def test_help_of_a_program_imports_no_command(program: str) -> None:
    found = imported_by(
        f"import sys; sys.argv = [{program!r}, '--help']\n"
        f"from {program}.cli.app import main\ntry:\n    main()\nexcept SystemExit as ended:\n    assert not ended.code"
    )
    assert found & OTHERS == set()
    framework = ("", ".context", ".exits", ".groups", ".options", ".standard_files")
    cli = {"coordinator.cli"} | {f"coordinator.cli.framework{name}" for name in framework}
    base = {"coordinator", "coordinator.errors", "coordinator.lazy", "coordinator.printable"}
    assert own(found) <= base | cli | {program, f"{program}.cli", f"{program}.cli.app"}


@pytest.mark.parametrize(("app", "lazy"), COMMANDS, ids=lambda one: getattr(one, "target", ""))
def test_help_of_a_program_shows_the_first_line_of_each_command(app: typer.Typer, lazy) -> None:
    module, _, name = lazy.target.partition(":")
    target = getattr(importlib.import_module(module), name)
    text = (target.info.help if isinstance(target, typer.Typer) else inspect.getdoc(target)) or ""
    assert lazy.summary == text.partition("\n\n")[0]


# ---- the names of the packages -----------------------------------------------------------------------------------------


def declared_for_type_checkers(package: str) -> dict[str, str]:
    tree = ast.parse((ROOT / package / "__init__.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    return {
        alias.name: str(node.module) for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }


@pytest.mark.parametrize("package", ["coordinator", "workers"])
def test_names_for_type_checkers_are_the_names_at_run_time(package: str) -> None:
    module = importlib.import_module(package)
    assert declared_for_type_checkers(package) == module._MODULES
    assert sorted(module._MODULES) == module.__all__
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__module__ == module._MODULES[name]


@pytest.mark.parametrize("package", ["coordinator", "workers"])
def test_star_import_gives_every_public_name(package: str) -> None:
    names: dict[str, object] = {}
    exec(f"from {package} import *", names)  # noqa: S102  # the statement is allowed only at the top of a module
    assert set(importlib.import_module(package).__all__) <= set(names)


def test_modules_of_a_package_are_its_attributes() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import coordinator; print(coordinator.errors.Refused is coordinator.Refused)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "True"


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'coordinator' has no attribute 'Cleint'"):
        coordinator.Cleint  # type: ignore[attr-defined]  # noqa: B018  # the access is the test
    with pytest.raises(ImportError, match="cannot import name 'Rnu' from 'workers'"):
        exec("from workers import Rnu")  # noqa: S102  # a type checker would refuse the statement
    assert not hasattr(workers, "__wrapped__")


def test_error_that_was_pickled_has_its_class() -> None:
    again = pickle.loads(pickle.dumps(coordinator.NotFound("run r1 does not exist")))  # noqa: S301  # it is our own
    assert type(again) is coordinator.NotFound
