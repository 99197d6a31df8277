"""`python -m build` in a clean clone makes a source archive. The wheel that it would make has what it should have.

tests/process/test_wheel.py compiles wheels.
"""
import ast
import email.parser
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tomllib

import numpy as np
import pytest
from conftest import PATIENCE

import ps_shm
from ps_shm import checkpoint

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = {"ps_shm", "worker_shm", "launch_shm", "inspect_shm"}


def run(*command, timeout=PATIENCE, **more):
    done = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout,
                          **more)
    assert done.returncode == 0, done.stdout
    return done.stdout


PATH = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
BUILD = [sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check"]
BUILD_ENVIRONMENT = {**os.environ, "PATH": PATH, "PYTHONPATH": ""}


def is_checkout():
    """Skips the test in an unpacked release tarball, even if that lies below another checkout."""
    asked = subprocess.run(["git", "-C", ROOT, "rev-parse", "--show-toplevel", "HEAD"], capture_output=True, text=True)
    return asked.returncode == 0 and ROOT.samefile(asked.stdout.splitlines()[0])


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The source archive, built from a clone."""
    if not is_checkout():
        pytest.skip("no git, or no checkout of this user's")
    place = tmp_path_factory.mktemp("package")
    run("git", "clone", "-q", ROOT, place / "clone")
    run(*BUILD, "--sdist", "-o", place / "out", place / "clone", env=BUILD_ENVIRONMENT)
    with tarfile.open(next((place / "out").glob("*.tar.gz"))) as archive:
        archive.extractall(place)
        return place / archive.getnames()[0].split("/")[0]


def check_metadata(text):
    said = email.parser.Parser().parsestr(text)
    version = re.search(r"version: '([\d.]+)'", (ROOT / "meson.build").read_text())[1]
    assert (said["Name"], said["Version"], said["License-Expression"]) == ("ps-shm", version, "Apache-2.0")
    assert said.get_all("Requires-Dist") == ["numpy", 'torch>=1.13; extra == "torch"']
    assert "# ps-shm" in said.get_payload()


def test_the_source_archive_is_the_clone(source):
    tracked = set(run("git", "-C", ROOT, "ls-tree", "-r", "--name-only", "HEAD").splitlines())
    assert tracked <= {str(path.relative_to(source)) for path in source.rglob("*")}
    check_metadata((source / "PKG-INFO").read_text())


def test_the_wheel_would_have_the_programs_and_types(source, tmp_path):
    settings = tomllib.loads((source / "pyproject.toml").read_text())["tool"]["meson-python"]["args"]
    run("meson", "setup", tmp_path, source, *settings["setup"], "-Dpython_program=" + sys.executable, "-Dcuda=disabled")
    tags = settings["install"][0].removeprefix("--tags=").split(",")
    package, scripts = set(), set()
    for files in json.loads(run("meson", "introspect", "--install-plan", tmp_path)).values():
        for file in files.values():
            place = file["destination"]
            if file["tag"] not in tags:
                continue
            if place.startswith("{bindir}/"):
                scripts.add(place.removeprefix("{bindir}/"))
            else:
                assert "/ps_shm/" in place, f"{place} is not of the package"
                package.add(place.split("/ps_shm/", 1)[1])
    assert scripts == PROGRAMS
    assert {"py.typed", "_core.pyi", "__main__.py", "checkpoint.py", "torch/__init__.py"} <= package
    sources = {str(path.relative_to(ROOT / "python/ps_shm")) for path in (ROOT / "python/ps_shm").rglob("*.py")}
    assert sources <= package and [name for name in package if name.startswith("_core.") and name.endswith(".so")]


# Each argument that is a path. The test below passes a pathlib.Path to it; for _TableStorage, test_keyed.py does.
PATHS = {
    "Checkpoint.__init__ folder", "FolderPublisher.__init__ folder", "FolderPublisher.__init__ static_files",
    "Optimizer.__init__ restore", "Server.__init__ restore", "checkpoint.latest folder", "checkpoint.load folder",
    "checkpoint.save folder"}
INTERNAL = ("Membership", "_core", "_kept")  # called with texts only


def arguments_that_are_paths():
    """Each function and argument of the package that is named or typed as a path, from its sources and _core.pyi."""
    is_path = re.compile(r"(\w+_)?(folder|files?|path|dir)|restore|\w*path")
    for file in pathlib.Path(ps_shm.__file__).parent.rglob("*.py*"):
        if file.suffix not in (".py", ".pyi"):
            continue
        for within in [n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, (ast.Module, ast.ClassDef))]:
            owner = getattr(within, "name", file.stem)
            for function in [n for n in within.body if isinstance(n, ast.FunctionDef)]:
                is_private = function.name.startswith("_") and function.name != "__init__" or owner in INTERNAL
                for one in function.args.posonlyargs + function.args.args + function.args.kwonlyargs:
                    typed = ast.unparse(one.annotation) if one.annotation else ""
                    if not is_private and typed not in ("int", "bool") and (is_path.fullmatch(one.arg) or "PathLike" in typed):
                        yield f"{owner}.{function.name} {one.arg}"


def test_no_argument_that_is_a_path_is_forgotten():
    assert {one for one in arguments_that_are_paths() if not one.startswith("_TableStorage.")} == PATHS


def test_paths_are_texts_or_path_objects(job, tmp_path):
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text("{}")
    with ps_shm.FolderPublisher(tmp_path / "weights", {"w": np.ones(3, np.float32)}, static_files=base) as publisher:
        publisher.publish({"w": np.ones(3, np.float32)})
        assert pathlib.Path(publisher.path, "config.json").read_text() == "{}"
    with ps_shm.Server(job), ps_shm.Worker(job) as worker:
        worker.variable("0.weight", np.ones((2, 3), np.float32))
        worker.step()
        folder = pathlib.Path(checkpoint.save(worker, tmp_path / "runs"))
    assert folder == tmp_path / "runs" / "step-1"
    found = [checkpoint.latest(tmp_path / "runs"), checkpoint.load(folder), checkpoint.Checkpoint(folder)]
    assert [one.folder for one in found] == [str(folder)] * 3
    with ps_shm.Server(job, restore=folder) as server:
        assert server.global_step == 1
    torch = pytest.importorskip("torch")
    from ps_shm.torch import Optimizer

    model = torch.nn.Sequential(torch.nn.Linear(3, 2, bias=False))
    with Optimizer(model, job, create=True, restore=folder) as optimizer:
        assert optimizer.worker.global_step == 1
