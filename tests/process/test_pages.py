"""The manual pages and completions that are installed: man(1) shows the pages without a warning, and bash completes."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import support
from support import ProcessTest, run

PROGRAMS = ("ps_shm", "worker_shm", "launch_shm", "inspect_shm")


class Manual(ProcessTest):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="ps-test-"))
        for program in PROGRAMS:
            (cls.folder / f"{program}.1").write_text(run(program, "--help-man").out)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def test_groff_has_nothing_to_warn_of(self):
        for program in PROGRAMS:
            with self.subTest(program):
                done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", self.folder / f"{program}.1"], capture_output=True,
                                      text=True, timeout=support.PATIENCE)
                self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_it_has_what_help_has(self):
        for program in PROGRAMS:
            with self.subTest(program):
                env = {**os.environ, "MANWIDTH": "500", "LC_ALL": "C.UTF-8", "MAN_KEEP_FORMATTING": ""}
                done = subprocess.run(["man", "-P", "cat", "-l", self.folder / f"{program}.1"], capture_output=True, text=True,
                                      timeout=support.PATIENCE, env=env)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                page = re.sub(r".\x08", "", done.stdout)
                for part in ("NAME", "SYNOPSIS", "OPTIONS", "EXAMPLES", "SEE ALSO"):
                    self.assertRegex(page, rf"(?m)^{part}$")
                texts = [run(program, "--help-all" if program != "inspect_shm" else "--help").out]
                if program == "inspect_shm":
                    commands = re.findall(r"^  (\w+) {2,}", texts[0].split("Commands")[1].split("\n\n")[0], re.M)
                    self.assertIn("doctor", commands)
                    texts += [run(program, command, "--help").out for command in commands]
                for option in {option for text in texts for option in re.findall(r"^  (?:-h,)?(--[a-z0-9-]+)", text, re.M)}:
                    self.assertRegex(page, rf"{option}\b")

    def test_it_is_no_option_that_help_tells_of(self):
        for program in PROGRAMS:
            for option in ("--help-man", "--help-bash"):
                self.assertNotIn(option, run(program, "--help").out)


class Completion(ProcessTest):
    def completed(self, line):
        """The completions that bash offers for the last word of a line."""
        words = line.split(" ")
        script = run(words[0], "--help-bash").out
        done = subprocess.run(["bash", "--norc", "-c", script + '\nCOMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _' + words[0] +
                               '; printf "%s\\n" "${COMPREPLY[@]}"', "bash", *words], capture_output=True, text=True,
                              timeout=support.PATIENCE)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.split()

    def test_commands_options_and_values(self):
        for line, offered in (("inspect_shm doc", ["doctor"]), ("inspect_shm dump --sl", ["--slice"]),
                              ("inspect_shm doctor --re", ["--repair"]), ("inspect_shm workers --re", []),
                              ("ps_shm --chunk", ["--chunk-bytes"]), ("ps_shm --mode s", ["ssp", "sync"]),
                              ("launch_shm --evaluate", ["--evaluate-every"]), ("worker_shm --wire b", ["bfloat16-push"]),
                              ("worker_shm --lr 0", [])):
            with self.subTest(line):
                self.assertEqual(sorted(self.completed(line)), offered)
        self.assertIn("metrics", self.completed("inspect_shm "))

    def test_jobs_files_and_folders(self):
        ps = self.start_ps("--workers", "1")
        self.assertEqual(self.completed(f"inspect_shm show --job {self.job[:-1]}"), [self.job])
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "file.prom").touch(), (pathlib.Path(folder) / "files").mkdir()
            self.assertEqual(sorted(self.completed(f"inspect_shm metrics --textfile {folder}/fi")),
                             [f"{folder}/file.prom", f"{folder}/files"])
            self.assertEqual(self.completed(f"launch_shm --summary-dir {folder}/fi"), [f"{folder}/files"])
        ps.terminate()
        support.finish(ps)

    def test_a_shell_that_has_read_it_completes(self):
        with tempfile.NamedTemporaryFile("w", suffix=".bash") as script:
            script.write(run("inspect_shm", "--help-bash").out)
            script.flush()
            done = subprocess.run(["bash", "--norc", "-c", f"source {script.name}; complete -p inspect_shm"],
                                  capture_output=True, text=True, timeout=support.PATIENCE)
        self.assertEqual(done.stdout, "complete -F _inspect_shm inspect_shm\n")


if __name__ == "__main__":
    support.main()
