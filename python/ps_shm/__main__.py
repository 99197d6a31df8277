"""`python -m ps_shm ARGUMENTS` runs inspect_shm, installed with the package or found on the PATH."""

import os
import shutil
import sys
import sysconfig


def main() -> None:
    folder = sysconfig.get_path("scripts")
    program = shutil.which("inspect_shm", path=folder) or shutil.which("inspect_shm")
    if program is None:
        sys.exit(f"python -m ps_shm: there is no inspect_shm in {folder} or on the PATH")
    os.execv(program, ["inspect_shm", *sys.argv[1:]])


main()
