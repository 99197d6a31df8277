"""The README's own lines: the classic start by hand, and the example built against the installed tree."""
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile

import support
from support import ProcessTest

README = (support.SOURCE / "README.md").read_text()


def block_after(heading, language):
    section = README[README.index(heading):]
    return re.search(rf"```{language}\n(.*?)```", section, re.S).group(1)


class Readme(ProcessTest):
    def test_the_classic_start_in_three_terminals(self):
        lines = [line for line in block_after("### By hand", "sh").splitlines() if line.strip()]
        self.assertEqual(len(lines), 3)
        job = re.search(r"--job (\S+)", lines[0]).group(1)
        self.assertEqual(support.segments(job), [], "another job has the README's name")
        processes = []
        for line in lines:
            program, *arguments = shlex.split(line.split("#")[0])
            processes.append(self.start(pathlib.Path(program).name, *arguments))
        for process in processes:
            code, out, err = support.finish(process)
            self.assertEqual(code, 0, err)
        self.assertEqual(support.segments(job), [])

    def test_the_example_builds_against_the_installed_tree(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            build = support.TOOLS.parent
            subprocess.run(["meson", "install", "-C", build, "--no-rebuild", "--destdir", folder / "root"], check=True,
                           stdout=subprocess.DEVNULL)
            config = next((folder / "root").rglob("ps.pc"))
            prefix = next(line.split("=")[1].strip() for line in config.read_text().splitlines() if line.startswith("prefix"))
            env = {**os.environ, "PKG_CONFIG_PATH": str(config.parent), "PKG_CONFIG_SYSROOT_DIR": str(folder / "root")}
            flags = subprocess.run(["pkg-config", "--cflags", "--libs", "ps"], env=env, check=True, text=True,
                                   capture_output=True).stdout.split()
            (folder / "example.cpp").write_text(block_after("### In a program of your own", "cpp"))
            compiler = shlex.split(os.environ.get("CXX", "g++"))
            subprocess.run([*compiler, "example.cpp", *flags, "-o", "example"], cwd=folder, check=True)
            libraries = next((folder / "root").rglob("libps.so")).parent
            result = subprocess.run([folder / "example"], env={**support.environment(), "LD_LIBRARY_PATH": str(libraries)},
                                    capture_output=True, text=True, timeout=support.PATIENCE)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("30", result.stdout)


if __name__ == "__main__":
    support.main()
