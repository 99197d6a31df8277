"""What training has come to is kept: launch_shm --save, inspect_shm dump --npy, and what a new job of the name does to it."""
import ast
import json
import os
import pathlib
import struct
import subprocess
import tempfile

import support
from support import Peer, ProcessTest, run
from terminal import Terminal


def read_safetensors(path):
    """Its metadata, and each tensor's shape and values, by the format's description alone."""
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8:8 + size])
    metadata, values, tensors, ends = header.pop("__metadata__"), content[8 + size:], {}, 0
    for name, tensor in header.items():
        begin, end = tensor["data_offsets"]
        assert tensor["dtype"] == "F32" and begin == ends, (name, tensor)
        ends = end
        tensors[name] = tensor["shape"], struct.unpack(f"<{(end - begin) // 4}f", values[begin:end])
    assert ends == len(values) and (8 + size) % 8 == 0
    return metadata, tensors


# How NumPy calls them, and struct; NumPy has no bfloat16.
FORMS = {"<f4": "f", "<f8": "d", "<f2": "e", "|V2": "H", "<i8": "q", "<i4": "i", "<i2": "h", "|i1": "b", "<u8": "Q",
         "<u4": "I", "<u2": "H", "|u1": "B", "|b1": "b"}


def read_npy(path):
    content = path.read_bytes()
    assert content[:8] == b"\x93NUMPY\x01\x00", path
    (size,) = struct.unpack("<H", content[8:10])
    header = ast.literal_eval(content[10:10 + size].decode())
    form, width = FORMS[header["descr"]], int(header["descr"][2:])
    assert not header["fortran_order"] and (10 + size) % 64 == 0, header
    return list(header["shape"]), struct.unpack(f"<{(len(content) - 10 - size) // width}{form}", content[10 + size:])


class Saving(ProcessTest):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def values_of(self, name):
        code, out, err = run("inspect_shm", "dump", name, "--limit", "0", "--json", "--job", self.job)
        self.assertEqual(code, 0, err)
        (variable,) = json.loads(out)["variables"]
        return variable["values"]

    def test_save_has_all_parameters_and_averages_beside_them(self):
        file = self.folder / "model.safetensors"
        self.launch("--workers", "2", "--steps", "40", "--optimizer", "adam", "--ema", "0.9", "--ps-tasks", "2", "--placement",
                    "partition", "--save", file, "--keep-segments")
        metadata, tensors = read_safetensors(file)
        self.assertEqual((metadata["format"], metadata["optimizer"], metadata["model"]), ("pt", "adam", "mlp"))
        self.assertGreaterEqual(int(metadata["global_step"]), 40)
        self.assertEqual(sorted(tensors), ["hid_b", "hid_w", "sm_b", "sm_w"])
        for name, (shape, values) in tensors.items():
            self.assertEqual(list(values), self.values_of(name))
        averages = read_safetensors(self.folder / "model.ema.safetensors")[1]
        self.assertEqual({name: shape for name, (shape, _) in averages.items()},
                         {name: shape for name, (shape, _) in tensors.items()})
        self.assertNotEqual(averages["hid_w"], tensors["hid_w"])
        self.assertEqual(sorted(os.listdir(self.folder)), ["model.ema.safetensors", "model.safetensors"])
        self.assertEqual(run("inspect_shm", "rm", "--job", self.job).code, 0)

    def test_an_interrupted_run_saves_what_it_has_reached(self):
        file = self.folder / "model.safetensors"
        launch = self.start("launch_shm", "--job", self.job, "--workers", "1", "--steps", "100000000", "--save", file)
        support.wait_until(lambda: any(worker["steps"] > 0 for worker in support.workers_of(self.job) or []), "steps")
        launch.terminate()
        self.assertEqual(support.finish(launch).code, 130)
        self.assertGreater(int(read_safetensors(file)[0]["global_step"]), 0)

    def test_a_file_that_cannot_be_written_is_told_before_anything_starts(self):
        for wrong, said in ((self.folder / "none" / "x", "No such file"), (self.folder, "it is a folder")):
            self.assert_fails(1, run("launch_shm", "--job", self.job, "--steps", "10", "--save", wrong), "cannot write", said)

    def test_a_full_disk_fails_the_run_and_leaves_no_half_file(self):
        script = """mount -t tmpfs -o size=8k tmpfs "$1" || exit 77
            "$0/launch_shm" --job "$2" --workers 1 --steps 10 --save "$1/x.safetensors"; code=$?; ls "$1"; exit $code"""
        process = subprocess.Popen(["unshare", "-m", "sh", "-c", script, str(support.TOOLS), str(self.folder), self.job],
                                   text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env=support.environment())
        result = support.finish(process)
        if "unshare failed" in result.err or result.code == 77:
            self.skipTest("skipped: no mount namespaces here: " + result.err)
        self.assertEqual(result.code, 1, result.err)
        self.assertIn(f"cannot write {self.folder}/x.safetensors: No space left on device", result.err)
        self.assertNotIn("safetensors", result.out)

    def test_variables_of_every_dtype_are_shown_and_kept_as_they_are(self):
        peer = Peer(self, "declare", self.job)
        code, out, err = run("inspect_shm", "dump", "--json", "--job", self.job)
        self.assertEqual(code, 0, err)
        variables = json.loads(out)["variables"]
        self.assertEqual(len(variables), 13)
        for variable in variables:
            self.assertEqual(variable["dtype"], variable["name"])
            self.assertEqual((variable["values"], variable["min"], variable["max"], variable["mean"]), ([1, 2, 3], 1, 3, 2))
        self.assertIn("int64 [3], 3 elements: min 1, max 3", run("inspect_shm", "dump", "--job", self.job).out)
        self.assertEqual(run("inspect_shm", "dump", "--npy", self.folder, "--job", self.job).code, 0)
        index = json.loads((self.folder / "index.json").read_text())
        for variable in index["variables"]:
            expected = (0x3f80, 0x4000, 0x4040) if variable["dtype"] == "bfloat16" else (1, 2, 3)
            self.assertEqual(read_npy(self.folder / variable["file"]), ([3], expected), variable)
        self.assertEqual(peer.end(), 0)

    def test_npy_has_values_slots_and_averages(self):
        for layout, extra, slots in (("versioned", ["--ema", "0.9"], ["m", "v", "ema"]), ("inplace", [], ["m", "v", "t"])):
            with self.subTest(layout):
                self.launch("--workers", "1", "--steps", "30", "--optimizer", "adam", "--layout", layout, *extra, "--keep-segments")
                folder = self.folder / layout
                code, out, err = run("inspect_shm", "dump", "--npy", folder, "--job", self.job)
                self.assertEqual(code, 0, err)
                self.assertIn("wrote 4 variables at step 30", out)
                index = json.loads((folder / "index.json").read_text())
                self.assertEqual((index["job"], index["global_step"]), (self.job, 30))
                for variable in index["variables"]:
                    shape, values = read_npy(folder / variable["file"])
                    self.assertEqual((shape, list(values)), (variable["shape"], self.values_of(variable["name"])))
                    self.assertEqual(list(variable["slots"]), slots)
                    for file in variable["slots"].values():
                        self.assertEqual(read_npy(folder / file)[0], shape)
                    second = read_npy(folder / variable["slots"]["v"])[1]
                    self.assertTrue(all(value >= 0 for value in second) and any(value > 0 for value in second))
                    if layout == "inplace":  # how often each element was updated: where it has a gradient, 30 times
                        self.assertLessEqual(set(read_npy(folder / variable["slots"]["t"])[1]), set(range(31)))
                self.assertEqual(run("inspect_shm", "rm", "--job", self.job).code, 0)


class Replacing(ProcessTest):
    def leave(self):
        self.launch("--workers", "1", "--steps", "7", "--keep-segments")

    def relaunch(self, *arguments):
        return run("launch_shm", "--job", self.job, "--workers", "1", "--steps", "5", *arguments)

    def test_a_result_is_not_replaced_unasked(self):
        self.leave()
        self.assert_fails(1, self.relaunch(), f"job {self.job} is kept and holds the result of 7 steps", "--replace",
                          "inspect_shm dump --npy DIR --job " + self.job)
        self.assertTrue(support.segments(self.job))
        result = self.relaunch("--replace")
        self.assertEqual(result.code, 0, result.err)
        self.assertEqual(support.segments(self.job), [])

    def test_somebody_at_a_terminal_is_asked(self):
        self.leave()
        for answer, code in (("n", 1), ("y", 0)):
            with self.subTest(answer), Terminal(80, "launch_shm", "--job", self.job, "--workers", "1", "--steps", "5") as terminal:
                terminal.read_until(lambda: "[y/N]" in terminal.shown, "the question")
                os.write(terminal.here, (answer + "\n").encode())
                self.assertEqual(terminal.finish(), code, terminal.shown)
        self.assertEqual(support.segments(self.job), [])

    def test_a_dead_job_without_a_step_is_reclaimed(self):
        ps = self.start_ps("--workers", "1")
        ps.kill()
        ps.communicate()
        result = self.relaunch()
        self.assertEqual(result.code, 0, result.err)
        self.assertIn("reclaiming what a dead job of that name has left", result.err)


if __name__ == "__main__":
    support.main()
