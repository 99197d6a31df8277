"""Ends an example in one line, before it imports anything large, if a package that it needs is missing."""

import importlib.util
import pathlib
import sys


def check(*packages: str) -> None:
    """Exits if one of these packages, or ps_shm, is not installed for this Python."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    example = pathlib.Path(sys.argv[0]).name
    if missing:
        raise SystemExit(f"{example} needs {' and '.join(missing)}: {sys.executable} -m pip install {' '.join(missing)}")
    if importlib.util.find_spec("ps_shm") is None:
        checkout = pathlib.Path(__file__).resolve().parents[2]
        raise SystemExit(f"{example} needs ps_shm: {sys.executable} -m pip install {checkout}; docs/python.md says what that needs")
