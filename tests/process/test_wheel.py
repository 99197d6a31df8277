"""tools/wheel builds wheels that a fresh environment can install and use without Debian's libraries.

It needs PyPI, and takes ten minutes.
"""
import os
import re
import subprocess
import sys
import tempfile
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


class Licences(unittest.TestCase):
    """tools/dev/wheel_licences.py, with wheels that have only names of libraries."""

    def add_to(self, folder, *libraries):
        made = os.path.join(folder, "x-1-py3-none-any.whl")
        with zipfile.ZipFile(made, "w") as wheel:
            wheel.writestr("x-1.dist-info/METADATA", "Metadata-Version: 2.4\nName: x\nVersion: 1\n\na page\n\nof two\n")
            for library in libraries:
                wheel.writestr(f"x.libs/{library}", "")
            files = [f"{name},," for name in wheel.namelist()]
            wheel.writestr("x-1.dist-info/RECORD", "\n".join([*files, "x-1.dist-info/RECORD,,"]) + "\n")
        done = subprocess.run([sys.executable, "-B", support.SOURCE / "tools/dev/wheel_licences.py", made], capture_output=True,
                              text=True, timeout=support.PATIENCE)
        return made, done.returncode, done.stdout + done.stderr

    def test_the_licences_of_all_libraries_are_added(self):
        names = {os.path.basename(os.path.realpath(path)) for path in re.findall(
            r"=> (\S+/lib(?:tbb|numa)\.so\.\d+)$", subprocess.run(["ldconfig", "-p"], capture_output=True, text=True).stdout, re.M)}
        self.assertEqual(len(names), 2)
        with tempfile.TemporaryDirectory() as folder:
            made, code, said = self.add_to(folder, *(name.replace(".", "-0123abcd.", 1) for name in names))
            self.assertEqual(code, 0, said)
            with zipfile.ZipFile(made) as wheel:
                licences = sorted(name for name in wheel.namelist() if "/licenses/" in name)
                record = wheel.read("x-1.dist-info/RECORD").decode()
                metadata = wheel.read("x-1.dist-info/METADATA").decode()
                self.assertIn(b"Apache", wheel.read("x-1.dist-info/licenses/common/Apache-2.0.txt"))
            self.assertTrue(metadata.endswith("\n\na page\n\nof two\n"), metadata)
            for name in ("libraries/libtbb12.txt", "libraries/libnuma1.txt"):
                self.assertIn(f"x-1.dist-info/licenses/{name}", licences)
                self.assertIn(f"\nLicense-File: {name}\n", metadata)
            self.assertEqual(sorted(line.split(",")[0] for line in record.splitlines() if "/licenses/" in line), licences)
            self.assertTrue(record.endswith("\nx-1.dist-info/RECORD,,\n"))

    def test_one_that_is_missing_is_an_error_and_changes_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            made, code, said = self.add_to(folder, "libnobodys-0123abcd.so.1")
            self.assertEqual(code, 1)
            self.assertIn("libnobodys.so.1", said)
            with zipfile.ZipFile(made) as wheel:
                self.assertFalse([name for name in wheel.namelist() if "licenses" in name])


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
                brought = sum(".libs/" in name for name in files)
                self.assertGreater(brought, 0)
                self.assertTrue(any(name.endswith("/licenses/NOTICE") for name in files))
                self.assertGreaterEqual(sum("/licenses/libraries/" in name for name in files), brought // 2)  # a package has up to two
                package = {name.removeprefix("ps_shm/") for name in files if name.startswith("ps_shm/")}
                sources = support.SOURCE / "python/ps_shm"
                self.assertLessEqual({str(path.relative_to(sources)) for path in sources.rglob("*.py")}, package)


if __name__ == "__main__":
    support.main()
