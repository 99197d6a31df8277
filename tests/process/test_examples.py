"""The projects in examples/: each is copied, and built with CMake and with Meson against an installed tree."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import streams
import support
from support import SOURCE, ProcessTest

EXAMPLES = SOURCE / "examples"
# The output of each program on its first run and, if it differs, on its second run.
PRINTS = {
    "train": [r"y = 3\.0 x \+ 1\.0 after 200\d steps\n"],
    "rows": [r"distance \d\.\d\d before, 0\.0\d after; row 18 is as it was\n"],
    "publish": [r"(generation \d: w\[0\] = (\d), b\[0\] = \2, whole\n)*generation 5: w\[0\] = 5, b\[0\] = 5, whole\n"],
    "checkpoint": [r"begins at step 0\na snapshot of step 100: w\[0\] = 100\nwritten to example-checkpoint/step-100\n",
                   r"begins at step 100\na snapshot of step 200: w\[0\] = 200\nwritten to example-checkpoint/step-200\n"],
    "hooks": [r"step 10: loss [\d.]+\n(step \d+: loss [\d.]+\n)*reached a loss of 0\.00\d+ at step \d+\n"],
    "inspector": [r"job \S+: mode async, step 1, [\d.]+ KiB\nworker 0: alive, process \d+, 1 pushes\n"
                  r"variable w: 8 values, mean [\d.]+, 1 updates\n"],
}


class Examples(ProcessTest):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.prefix = support.install(cls.folder / "root")
        libraries = str(next(cls.prefix.rglob("ps_shm.pc")).parent)
        cls.env = {**support.environment(), "PKG_CONFIG_PATH": libraries, "CMAKE_PREFIX_PATH": str(cls.prefix)}
        cls.env.pop("LD_LIBRARY_PATH", None)

    def copied(self, name, kind):
        folder = self.folder / kind / name
        shutil.copytree(EXAMPLES / name, folder)
        return folder

    def make(self, folder, *commands):
        for command in commands:
            done = subprocess.run(command, cwd=folder, env=self.env, capture_output=True, text=True, timeout=support.PATIENCE)
            self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout}{done.stderr}")

    def check(self, name, folder):
        for wanted in PRINTS[name]:
            done = subprocess.run([folder / "build" / name], cwd=folder, env={**self.env, "LD_LIBRARY_PATH": str(
                next(self.prefix.rglob("libps_shm.so")).parent)}, capture_output=True, text=True, timeout=support.PATIENCE)
            self.assertEqual((done.returncode, streams.without_waits(done.stderr)), (0, ""), done.stdout)
            self.assertRegex(done.stdout, rf"\A(?:{wanted})\Z")

    def test_each_is_listed_and_has_what_it_needs(self):
        folders = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir() and path.name != "python")
        self.assertEqual(folders, sorted(PRINTS))
        self.assertEqual(sorted(re.findall(r"\((\w+)/README.md\)", (EXAMPLES / "README.md").read_text())), sorted([*folders, "python"]))
        for name in folders:
            self.assertEqual(sorted(os.listdir(EXAMPLES / name)), ["CMakeLists.txt", "README.md", "main.cpp", "meson.build"])

    def test_each_builds_by_cmake_and_does_what_its_page_says(self):
        for name in PRINTS:
            with self.subTest(name):
                folder = self.copied(name, "cmake")
                self.make(folder, ["cmake", "-B", "build", "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror"], ["cmake", "--build", "build"])
                self.check(name, folder)

    def test_each_builds_by_meson_and_does_the_same(self):
        for name in PRINTS:
            with self.subTest(name):
                folder = self.copied(name, "meson")
                self.make(folder, ["meson", "setup", "build", "-Dwarning_level=2", "-Dwerror=true"], ["ninja", "-C", "build"])
                self.check(name, folder)


if __name__ == "__main__":
    support.main()
