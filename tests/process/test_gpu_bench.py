"""The GPU benchmark: every part of it on the simulated GPU, and its message if there is no GPU."""
import contextlib
import glob
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import isolation  # mounts a private /dev/shm
from closings import Closings
from streams import PATIENCE

BENCHES = pathlib.Path(os.environ["PS_SHM_BENCHES"])
MAY_REPORT = os.environ["PS_SHM_BUILDTYPE"] != "debug" and os.environ["PS_SHM_SANITIZE"] == "none"
ATTRIBUTES = {86, 88, 91, 99, 100, 113, 134, 147}
SECTIONS = ("registrations", "waits", "tearing", "adds_with_processors", "adds_of_two_processes", "moves", "death",
            "links", "rows")
BULK = {*(f"bulk_pull_{blocks}_blocks" for blocks in (4, 8, 16, 32, 66, 132)),
        "bulk_pull_16_blocks_4_kib", "bulk_pull_16_blocks_32_kib"}
PATIENT = ("--patience", "100")  # the benchmark's limits are for a machine that does nothing else


def run(program, *arguments, **settings):
    done = subprocess.run([BENCHES / program, *PATIENT, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=PATIENCE, env={**os.environ, **settings})
    return done.returncode, done.stdout, done.stderr


def measured(*arguments, code=0, **settings):
    """What the benchmark says of the simulated GPU."""
    done, out, err = run("gpu_on_fake", "--quick", *arguments, **settings)
    if done != code:
        raise AssertionError(f"exit code {done}: {out}{err}")
    return json.loads(out)


def leftovers():
    return glob.glob("/dev/shm/ps_shm.bench-*-gpu*")


@unittest.skipUnless(MAY_REPORT, "skipped: debug and sanitizer builds do not report")
class OnFake(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.found = measured()

    def test_every_part_is_there_and_all_attributes_and_host_atomics_and_nothing_is_left(self):
        self.assertEqual(leftovers(), [])
        self.assertGreater(self.found["seconds"], 0)
        self.assertLessEqual(set(SECTIONS), set(self.found))
        self.assertLessEqual({"cpu", "memory", "compiler", "commit", "load_average"}, set(self.found["context"]))
        for gpu in self.found["facts"]["gpus"]:
            self.assertEqual({one["number"] for one in gpu["attributes"].values()}, ATTRIBUTES)
            self.assertEqual(len(gpu["host_atomics"]), 13)

    def test_no_add_of_the_fake_is_lost_and_all_have_added(self):
        for section in ("adds_with_processors", "adds_of_two_processes"):
            for name, adds in self.found[section].items():
                with self.subTest(name):
                    self.assertTrue(adds["is_exact"], adds)
                    self.assertEqual(adds["expected"], sum(adds["rounds"]))
                    self.assertTrue(all(adds["rounds"]))

    def test_reads_raced_with_stores_and_nothing_was_torn(self):
        for name, seen in self.found["tearing"].items():
            with self.subTest(name):
                self.assertGreater(seen["words"], 0)
                self.assertEqual(seen["torn_4_bytes"], 0)

    def test_moves_have_every_way_and_size(self):
        moves = dict(self.found["moves"])
        self.assertEqual(moves.pop("bulk_copies"), {"ring_bytes": 192 << 10})
        self.assertEqual([int(size) for size in moves], [4096 * 4**i for i in range(7)])
        windows = {f"copy_engine_pull_{kib}_kib{streams}" for kib in (256, 512, 1024) for streams in ("", "_two_streams")}
        for size, ways in moves.items():
            names = {"kernel_pull", "copy_engine_pull", "copy_engine_pull_in_chunks", "copy_engine_push", *BULK,
                     *(f"kernel_push_{blocks}_blocks" for blocks in (4, 8, 12, 16, 32))}
            self.assertEqual(set(ways), names | (windows if int(size) >= 4 << 20 else set()))
            for name, way in ways.items():
                self.assertGreater(way["GB/s"], 0, name)

    def test_a_gpu_without_bulk_copies_has_the_other_ways_and_says_so(self):
        moves = measured("--only", "moves", PS_SHM_TEST_WITHOUT_BULK_COPIES="1")["moves"]
        self.assertEqual(moves.pop("bulk_copies"), {"not_available": "they need compute capability 9.0"})
        for ways in moves.values():
            self.assertIn("kernel_pull", ways)
            self.assertEqual(BULK & set(ways), set())

    def test_links_stand_beside_the_limit_of_the_same_run(self):
        cases = self.found["links"]["cases"]
        if any("skipped" in case for case in cases):
            self.skipTest("skipped: /dev/shm has too little space")
        self.assertEqual({(c["mode"], c["chunk_bytes"]) for c in cases},
                         {(m, b) for m in ("async", "sync") for b in (32768, 1048576)})
        self.assertIn("bfloat16", {c["wire"] for c in cases})
        for case in cases:
            for way in ("pull", "push"):
                self.assertGreater(case[way]["limit"]["GB/s"], 0)

    def test_rows_are_right_and_stand_beside_the_other_ways(self):
        cases = self.found["rows"]["cases"]
        self.assertEqual([(c["elements"], c["ids"]) for c in cases],
                         [(e, i) for e in (16, 64, 128) for i in ("uniform", "zipf")])
        self.assertEqual(self.found["rows"]["warnings"], [])
        for case in cases:
            self.assertTrue(case["is_right"])
            self.assertLessEqual(case["distinct_share"], 1)
            for way in ("pull", "processor_gathers_then_copy", "bare_copy", "push", "copy_then_processor_pushes"):
                self.assertGreater(case[way]["rows/s"], 0)
        self.assertLess(cases[1]["distinct_share"], 0.8)  # skewed

    def test_a_table_is_as_large_as_asked_for(self):
        self.assertEqual(measured("--only", "rows", "--table-mib", "8")["rows"]["table_bytes"], 8 << 20)
        found = measured("--only", "rows", "--table-mib", str(1 << 40), code=1)
        self.assertIn("does not fit", found["rows"]["error"])
        self.assertEqual(leftovers(), [])

    def test_sections_that_are_written_to_one_folder_are_printed_together(self):
        with tempfile.TemporaryDirectory() as folder:
            for sections in (["registrations"], ["registrations", "waits"]):
                found = measured("--only", sections[-1], "--to", f"{folder}/new")
                self.assertEqual([name for name in SECTIONS if name in found], sections)
                self.assertEqual(sorted(os.listdir(f"{folder}/new")), [f"{name}.json" for name in sections])
            for name in sections:
                written = json.loads(pathlib.Path(folder, "new", f"{name}.json").read_text())
                self.assertEqual(written[name], found[name])
                self.assertIn("gpus", written["facts"])

    def test_a_section_that_is_ended_early_keeps_the_cases_that_it_has(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.closing(Closings(folder)) as closings:
            process = subprocess.Popen([BENCHES / "gpu_on_fake", *PATIENT, "--only", "rows", "--table-mib", "8", "--to", folder],
                                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
            file = pathlib.Path(folder, "rows.json")
            closings.next(2, PATIENCE)  # the file of the first case has its name once that of the second one is written
            self.assertGreater(len(json.loads(file.read_text())["rows"]["cases"]), 0)
            process.terminate()
            out, _ = process.communicate(timeout=PATIENCE)
            self.assertEqual(process.returncode, 130)
            for found in (json.loads(out), json.loads(file.read_text())):
                self.assertGreater(len(found["rows"]["cases"]), 0)
                self.assertEqual(found["rows"]["error"], "stopped by a signal")
            self.assertEqual(leftovers(), [])

    def test_a_killed_process_gives_its_pages_back(self):
        if "skipped" in self.found["death"]:
            self.skipTest("skipped: /dev/shm has too little space")
        if isolation.HAS_OWN_DEV_SHM:  # else others may take what it has given back
            self.assertIsNotNone(self.found["death"]["pages_free_after_s"])
        self.assertTrue(self.found["death"]["next_process_copies"])


@unittest.skipUnless(MAY_REPORT, "skipped: debug and sanitizer builds do not report")
class Usage(unittest.TestCase):
    SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "benches" / "gpu_rows.py"

    def rows(self, *arguments):
        done = subprocess.run([sys.executable, self.SCRIPT, *arguments], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=PATIENCE)
        return done.returncode, done.stdout, done.stderr

    @unittest.skipIf(glob.glob("/dev/nvidia[0-9]*"), "skipped: there is a GPU")
    def test_without_a_gpu_it_says_so_and_so_do_rows_beside_pytorch(self):
        for code, out, err in (run("gpu"), self.rows("--build", BENCHES.parent)):
            self.assertEqual(code, 77, err)
            self.assertRegex(out, r"^skip: no GPU \(.+\)\n$")

    def test_rows_are_printed_as_a_table(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "benches").mkdir()
            (pathlib.Path(folder) / "benches" / "gpu").symlink_to(BENCHES / "gpu_on_fake")
            report = pathlib.Path(folder) / "report.json"
            code, out, err = self.rows("--build", folder, "--quick", "--json", report)
            self.assertEqual(code, 0, err)
            self.assertEqual(len([line for line in out.splitlines() if line.startswith("| 1")]), 4)
            self.assertEqual(len(json.loads(report.read_text())["rows"]["cases"]), 6)

    def test_wrong_usage_is_an_error(self):
        self.assertEqual(run("gpu", "--table-mib", "0")[0], 2)
        self.assertEqual(run("gpu", "--nonsense")[0], 2)
        self.assertEqual(run("gpu_on_fake", "--only", "nonsense")[0], 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
