"""tools/dev/soak: its rounds pass, a failure is reported and can be repeated by its seed, and Ctrl-C ends it with its
table."""
import os
import pathlib
import re
import signal
import tempfile
import unittest

import support

SOAK = support.SOURCE / "tools/dev/soak"
BUILD = support.TOOLS.parent

# An inspector that reports every count one too high.
LIAR = """#!/bin/sh
"$REAL/inspect_shm" "$@" >"$0.$$" || exit
case $1 in dump) sed 's/"max": *\\([0-9]*\\)/"max": 1\\1/' "$0.$$" ;; *) cat "$0.$$" ;; esac
"""


def soak(*arguments, **options):
    return support.run(SOAK, *arguments, timeout=4 * support.PATIENCE, **options)


class Soak(unittest.TestCase):
    def test_rounds_pass_and_are_counted(self):
        code, out, err = soak("--build", BUILD, "--seed", 1, "--rounds", 5)
        self.assertEqual(code, 0, out + err)
        self.assertRegex(out, r"\| all \|  \| 5 \| 0 \|")

    def test_a_lost_update_fails_and_its_seed_gives_the_same_round_again(self):
        with tempfile.TemporaryDirectory() as folder:
            tools = pathlib.Path(folder) / "tools"
            tools.mkdir()
            for program in ("launch_shm", "ps_shm", "worker_shm"):
                (tools / program).symlink_to(support.TOOLS / program)
            (tools / "inspect_shm").write_text(LIAR.replace("$REAL", str(support.TOOLS)))
            (tools / "inspect_shm").chmod(0o755)
            only = ("--build", folder, "--models", "count", "--trouble", "stops", "--rounds", 1)
            code, out, err = soak(*only)
            self.assertEqual(code, 1, out + err)
            again = re.search(r"repeat it by --seed (\d+) --rounds 1\n((?:.*\n)*?)values from", out)
            self.assertTrue(again, out)
            code, out, err = soak(*only, "--seed", again[1])
            self.assertEqual(code, 1, out + err)
            self.assertIn(again[2], out)

    def test_ctrl_c_ends_it_with_its_table_and_leaves_nothing(self):
        process = support.start(SOAK, "--build", BUILD)
        support.wait_until(lambda: any(f"soak-{process.pid}-" in self.words_of(child)
                                       for child in support.children(process.pid)), "a round runs")
        process.send_signal(signal.SIGINT)
        code, out, err = support.finish(process)
        self.assertEqual(code, 0, err)
        self.assertIn("interrupted\n", out)
        self.assertIn("| all |", out)
        self.assertFalse([pid for pid in os.listdir("/proc") if f"soak-{process.pid}-" in self.words_of(pid)])

    def words_of(self, pid):
        try:
            return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            return ""


if __name__ == "__main__":
    support.main()
