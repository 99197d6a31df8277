"""tools/wheel builds wheels that a fresh environment can install and use without Debian's libraries.

It needs PyPI, and takes ten minutes.
"""
import os
import re
import subprocess
import sys
import unittest
import zipfile

import support

PROGRAMS = {"ps_shm", "worker_shm", "launch_shm", "inspect_shm"}
MOST_BYTES = 32 << 20
WHEELS = support.SOURCE / "build/wheels"


def reaches_pypi():
    """Whether pip finds a package there."""
    asked = subprocess.run([sys.executable, "-m", "pip", "index", "versions", "nanobind"], capture_output=True, timeout=support.PATIENCE)
    return asked.returncode == 0


class Wheel(unittest.TestCase):
    @unittest.skipUnless(reaches_pypi(), "skipped: pip does not reach PyPI")
    def test_each_wheel_works_in_a_fresh_environment(self):
        code, out, err = support.run(support.SOURCE / "tools/wheel", timeout=3300,
                                     env={name: value for name, value in os.environ.items() if not name.startswith("PS_SHM_")})
        self.assertEqual(code, 0, out + err)
        self.assertGreater(len(re.findall(r"^\S+ works with Python 3\.\d+", out, re.M)), 0)
        for made in re.findall(r"^built (\S+\.whl)$", err, re.M):
            with self.subTest(made), zipfile.ZipFile(made) as wheel:
                self.assertRegex(made, r"ps_shm-[\d.]+-(cp310-cp310|cp311-cp311|cp312-abi3)-manylinux_2_34_\w+\.whl$")
                self.assertLess(os.path.getsize(made), MOST_BYTES)
                files = [name for name in wheel.namelist() if not name.endswith("/")]
                self.assertEqual({name.split("/")[-1] for name in files if ".data/scripts/" in name}, PROGRAMS)
                package = {name.removeprefix("ps_shm/") for name in files if name.startswith("ps_shm/")}
                sources = support.SOURCE / "python/ps_shm"
                self.assertLessEqual({str(path.relative_to(sources)) for path in sources.rglob("*.py")}, package)


if __name__ == "__main__":
    support.main()
