"""inspect_shm dump, stats and diff: values of variables and the difference between two states; events --follow."""
import array
import ast
import json
import math
import pathlib
import re
import shutil
import tempfile

import support
from support import Peer, ProcessTest, run


def read_npy(path):
    """The shape and the float32 elements of an .npy file."""
    data = path.read_bytes()
    size = int.from_bytes(data[8:10], "little")
    header = ast.literal_eval(data[10:10 + size].decode())
    assert header["descr"] == "<f4" and not header["fortran_order"], header
    return header["shape"], list(array.array("f", data[10 + size:]))


class Values(ProcessTest):
    """A finished job whose segments are kept, with an mlp: hid_w [64, 128] and others; its checkpoints are of step 200
    and of the end."""

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ps-test-"))
        self.addCleanup(shutil.rmtree, self.folder)
        for steps, *more in (("200",), ("400", "--keep-segments")):  # the second run resumes from the first
            self.launch("--workers", "1", "--mode", "sync", "--steps", steps, "--checkpoint-dir", self.folder / "kept", *more)

    def tearDown(self):
        run("inspect_shm", "rm", "--job", self.job, "--force")
        super().tearDown()

    def json_of(self, command, *more, code=0):
        result = run("inspect_shm", command, *more, "--json")
        self.assertEqual(result.code, code, result.err)
        return json.loads(result.out)

    def dumped(self, *more):
        (row,) = self.json_of("dump", "--job", self.job, "hid_w", "--limit", "0", *more)["variables"]
        return row

    def test_a_slice_is_what_numpy_takes(self):
        whole = self.dumped()["values"]
        rows = [whole[128 * row:128 * (row + 1)] for row in range(64)]
        for slice, shape, values in (("3", [128], rows[3]), ("3,5", [], [rows[3][5]]), ("-1,:2", [2], rows[63][:2]),
                                     ("0:10,3", [10], [row[3] for row in rows[:10]]),
                                     ("60:100,::64", [4, 2], [row[i] for row in rows[60:] for i in (0, 64)]),
                                     (":,-2:", [64, 2], [x for row in rows for x in row[-2:]]), ("9:3", [0, 128], [])):
            with self.subTest(slice):
                row = self.dumped(f"--slice={slice}")
                self.assertEqual((row["shape"], row["values"]), (shape, values))
                self.assertEqual(row["element_count"], len(values))
                if values:
                    self.assertAlmostEqual(row["norm"], math.sqrt(sum(x * x for x in values)), places=6)
                    self.assertEqual((row["min"], row["max"]), (min(values), max(values)))
                file = self.folder / "w.npy"
                self.assertEqual(self.json_of("dump", "--job", self.job, "hid_w", f"--slice={slice}", "--npy", file)["shape"],
                                 shape)
                got, elements = read_npy(file)
                self.assertEqual((list(got), elements), (shape, [array.array("f", [x])[0] for x in values]))

    def test_a_slice_that_is_none_is_said_to_be_so(self):
        for slice, *words in (("64", "axis 0", "64"), ("0,0,0", "2 axes"), ("a", "'a'"), ("::0", "1 or more"), ("1:2:-1", "-1")):
            with self.subTest(slice):
                self.assert_fails(2, run("inspect_shm", "dump", "--job", self.job, "hid_w", f"--slice={slice}"), *words)
        self.assert_fails(2, run("inspect_shm", "dump", "--job", self.job, "--slice=3"), "one variable")
        self.assert_fails(2, run("inspect_shm", "dump", "--job", self.job, "--npy", self.folder / "w.npy"), "one variable")
        self.assert_fails(1, run("inspect_shm", "dump", "--job", self.job, "none", "--slice=3"), "none", "hid_w")

    def test_statistics_are_those_of_the_values(self):
        values = self.dumped()["values"]
        (row,) = self.json_of("stats", "--job", self.job, "hid_w")["variables"]
        self.assertEqual((row["element_count"], row["sampled"]), (8192, 8192))
        self.assertAlmostEqual(row["mean"], sum(values) / 8192, places=9)
        self.assertAlmostEqual(row["norm"], math.sqrt(sum(x * x for x in values)), places=6)
        histogram = row["histogram"]
        edges = [histogram["at_least"], *histogram["bounds"]]
        self.assertEqual((edges[0], sum(histogram["counts"])), (min(values), 8192))
        middle = sum(edges[20] < x <= edges[40] for x in values)
        self.assertLessEqual(abs(sum(histogram["counts"][20:40]) - middle), 2)  # rounding at the edges of the bins
        lines = run("inspect_shm", "stats", "--job", self.job, "hid_w", env={"COLUMNS": "60"}).out.splitlines()
        bars = [line for line in lines if ".." in line]
        self.assertEqual(len(bars), 16)
        self.assertEqual(sum(int(line.split()[3]) for line in bars), 8192)
        self.assertEqual(max(map(len, lines)), 60)

    def test_a_sample_is_said_to_be_one(self):
        (row,) = self.json_of("stats", "--job", self.job, "hid_w", "--sample", "3000")["variables"]
        self.assertLess(row["sampled"], 4096)
        (all_of_it,) = self.json_of("stats", "--job", self.job, "hid_w")["variables"]
        self.assertLess(abs(row["norm"] - all_of_it["norm"]), 0.2 * all_of_it["norm"])

    def test_a_job_and_its_last_checkpoint_are_equal_and_the_one_before_is_not(self):
        kept = self.folder / "kept"
        snapshot = f"{self.job}@snapshot"
        self.assert_fails(2, run("inspect_shm", "diff", snapshot, snapshot), "one snapshot at a time")
        for state in (self.job, f"{self.job}@snapshot", kept / "step-400"):
            self.assertTrue(self.json_of("diff", state, kept)["equal"], state)
        found = self.json_of("diff", kept / "step-200", f"{self.job}@snapshot", code=3)
        self.assertFalse(found["equal"])
        self.assertEqual([found[side]["global_step"] for side in "ab"], [200, 400])
        row = next(row for row in found["variables"] if row["name"] == "hid_w")
        self.assertGreater(row["norm_of_difference"], 0)
        i, j = row["largest_at"]
        (now,) = self.json_of("dump", "--job", self.job, row["name"], f"--slice={i},{j}")["variables"]
        self.assertEqual(now["values"], [row["value_b"]])
        self.assertAlmostEqual(abs(row["value_b"] - row["value_a"]), row["largest_difference"], places=6)
        text = run("inspect_shm", "diff", kept / "step-200", self.job)
        self.assertEqual(text.code, 3)
        self.assertIn("they differ\n", text.out)

    def test_what_one_has_and_the_other_not_is_named(self):
        other = f"{self.job}-other"
        self.assertEqual(run("launch_shm", "--job", other, "--workers", "1", "--steps", "10", "--model", "softmax",
                             "--keep-segments").code, 0)
        found = self.json_of("diff", self.job, other, code=3)
        self.assertIn({"name": "hid_w", "why": "only in a"}, found["unlike"])
        self.assertTrue(any(row["why"] == "only in b" or "in b" in row["why"] for row in found["unlike"]))
        run("inspect_shm", "rm", "--job", other)
        self.assert_fails(1, run("inspect_shm", "diff", self.job, self.folder / "none"), "none")
        self.assert_fails(1, run("inspect_shm", "diff", self.job, f"{self.job}-none"), f"did you mean {self.job}?")


class Numbers(ProcessTest):
    def test_integers_that_are_equal_as_doubles_differ(self):
        other = f"{self.job}-b"
        peers = [Peer(self, "declare-integers", job, number) for job, number in ((self.job, 2**53), (other, 2**53 + 1))]
        result = run("inspect_shm", "diff", self.job, other, "--json")
        self.assertEqual(result.code, 3, result.err)
        for row in json.loads(result.out)["variables"]:
            self.assertEqual((row["different_count"], row["largest_at"], row["largest_difference"]), (1, [0], 1.0), row)
            self.assertEqual((row["value_a"], row["value_b"]), (2**53, 2**53 + 1), row)
        self.assertEqual(run("inspect_shm", "diff", self.job, self.job).code, 0)
        for peer in peers:
            self.assertEqual(peer.end(), 0)

    def test_integers_of_64_bits_are_not_rounded(self):
        peer = Peer(self, "declare-integers", self.job, 2**53 + 1)
        for row in json.loads(run("inspect_shm", "stats", "--job", self.job, "--json").out)["variables"]:
            self.assertEqual((row["min"], row["max"]), (2**53 + 1, 2**53 + 1), row)
        self.assertEqual(peer.end(), 0)

    def test_nan_and_infinities_are_counted_and_hide_nothing(self):
        peer = Peer(self, "declare-odd", self.job)
        out = json.loads(run("inspect_shm", "stats", "--job", self.job, "odd", "--json").out)
        (row,) = out["variables"]
        self.assertEqual((row["nan_count"], row["infinite_count"]), (1, 2))
        self.assertEqual((row["min"], row["max"], row["mean"], row["norm"]), (-3.0, 4.0, 0.5, 5.0))
        self.assertIn("1 NaN, 2 infinite", run("inspect_shm", "stats", "--job", self.job, "odd").out)
        self.assertTrue(json.loads(run("inspect_shm", "diff", self.job, self.job, "--json").out)["equal"])
        self.assertEqual(peer.end(), 0)


class Steps(ProcessTest):
    def test_the_step_of_a_job_is_that_of_its_values_however_late_the_other_side_is_open(self):
        ps = self.start_ps("--workers", "2")
        peers = [Peer(self, "push", self.job, 0, 3, 0.5)]
        holder = Peer(self, "hold-snapshot", self.job)
        diff = self.start("inspect_shm", "diff", self.job, f"{self.job}@snapshot", "--json")
        # It has opened the job, and once more, for writing: now it waits for the other snapshot to be released.
        maps = pathlib.Path(f"/proc/{diff.pid}/maps")
        support.wait_until(lambda: re.search(rf" rw-s .*/ps_shm\.{self.job}\n", maps.read_text()), "it asks for a snapshot")
        peers.append(Peer(self, "push", self.job, 1, 4, 0.5))
        self.assertEqual(holder.end(), 0)
        code, out, err = support.finish(diff)
        self.assertEqual(code, 0, err)
        found = json.loads(out)
        self.assertEqual([(found[side]["kind"], found[side]["global_step"]) for side in "ab"], [("job", 7), ("snapshot", 7)])
        for peer in peers:
            self.assertEqual(peer.end(), 0)
        support.finish(ps)


class Events(ProcessTest):
    def test_they_are_followed_until_the_job_ends(self):
        ps = self.start_ps("--workers", "2")
        follower = self.start("inspect_shm", "events", "--job", self.job, "--follow", "--json", "--kind", "joined")
        worker = ("worker_shm", "--job", self.job, "--model", "count", "--steps", "3")
        self.assertEqual(run(*worker).code, 0)
        first = json.loads(support.read_line(follower.stdout))  # printed at once, while the job still runs
        self.assertEqual((first["kind"], first["rank"]), ("joined", 0))
        self.assertIsNone(follower.poll())
        self.assertEqual(run(*worker).code, 0)
        code, out, err = support.finish(follower)
        self.assertEqual((code, err), (0, ""))
        self.assertEqual([json.loads(line)["kind"] for line in out.splitlines()], ["joined"])
        support.finish(ps)

    def test_of_a_dead_job_there_are_those_that_were(self):
        ps = self.start_ps("--workers", "2")
        self.assertEqual(run("worker_shm", "--job", self.job, "--model", "count", "--steps", "3").code, 0)
        ps.kill()
        ps.communicate()
        result = run("inspect_shm", "events", "--job", self.job, "--follow")
        self.assertEqual(result.code, 0)
        self.assertIn("worker 0", result.out)
        run("inspect_shm", "rm", "--job", self.job)


if __name__ == "__main__":
    support.main()
