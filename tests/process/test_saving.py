"""What a run leaves: launch_shm --save and --report, inspect_shm dump --npy, the lines that name the files, and how a new
job with the same name affects it."""
import ast
import html.parser
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import tempfile
import zlib

import support
from support import Peer, ProcessTest, run
from terminal import Terminal


def read_safetensors(path):
    """Returns the metadata, and the shape and values of each tensor. Written from the description of the format
    alone."""
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


# Their names in NumPy and in struct; NumPy has no bfloat16.
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


class FolderTest(ProcessTest):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)


class Saving(FolderTest):
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
        for option, name, ending in (("--save", "model.pt", ".safetensors"), ("--report", "run.pdf", ".html")):
            result = run("launch_shm", "--job", self.job, "--steps", "10", option, self.folder / name)
            self.assert_fails(1, result, f"{option} {self.folder / name}: the name must end in {ending}")
            self.assertEqual((result.out, os.listdir(self.folder)), ("", []))

    def test_a_full_disk_fails_the_run_and_leaves_no_half_file(self):
        script = """mount -t tmpfs -o size=8k tmpfs "$1" || exit 77
            "$0/launch_shm" --job "$2" --workers 1 --steps 10 --save "$1/x.safetensors"; code=$?; ls "$1"; exit $code"""
        if not support.may_mount():
            self.skipTest("skipped: no mounts of one's own are allowed here")
        process = subprocess.Popen(["unshare", "-m", "sh", "-c", script, str(support.TOOLS), str(self.folder), self.job],
                                   text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env=support.environment())
        result = support.finish(process)
        self.assertEqual(result.code, 1, result.err)
        self.assertIn(f"cannot write {self.folder}/x.safetensors: No space left on device", result.err)
        self.assertNotIn("safetensors", result.out)

    def save(self, name, *options):
        file = self.folder / f"{name}.safetensors"
        self.launch("--workers", "2", *options, "--save", file)
        return file, {tensor: list(values) for tensor, (_, values) in read_safetensors(file)[1].items()}

    def assert_nearly(self, tensors, expected, *why):
        """The learning rate was too small to change any value except a zero."""
        self.assertEqual(tensors.keys(), expected.keys())
        for name, values in tensors.items():
            self.assertTrue(all(abs(a - b) < 1e-20 for a, b in zip(values, expected[name], strict=True)), (name, *why))

    def test_a_job_begins_with_the_values_of_a_file(self):
        file, first = self.save("first", "--steps", "40")
        kept = ("--steps", "2", "--lr", "1e-30", "--init-from", file)  # a learning rate that changes nothing
        for options in ((), ("--mode", "sync", "--optimizer", "momentum"), ("--layout", "inplace"),
                        ("--ps-tasks", "2", "--placement", "partition")):
            self.assert_nearly(self.save("again", *kept, *options)[1], first, options)
        some = self.save("some", *kept, "--init-match", "^hid_")[1]
        self.assertTrue(any(abs(a - b) > 1e-3 for a, b in zip(some["sm_w"], first["sm_w"])))
        self.assert_nearly({name: some[name] for name in ("hid_w", "hid_b")},
                           {name: first[name] for name in ("hid_w", "hid_b")})
        code, out, err = run("worker_shm", "--standalone", *kept)
        self.assertEqual(code, 0, err)
        self.assertIn(f"4 of 4 variables are initialised from {file}", out)
        alone = json.loads(run("worker_shm", "--standalone", "--json", *kept).out)
        beside = json.loads(run("launch_shm", "--job", self.job, "--workers", "1", "--json", *kept).out)
        self.assertEqual(alone["digest"], beside["digest"])

    def test_a_sparse_job_does_so_too(self):
        made = ("--model", "logistic", "--data", "zipf:300x500")
        file, first = self.save("first", *made, "--epochs", "2")
        kept = (*made, "--steps", "2", "--lr", "1e-30", "--init-from", file)
        self.assert_nearly(self.save("again", *kept)[1], first)
        code, out, err = run("worker_shm", "--standalone", *kept)
        self.assertEqual(code, 0, err)
        self.assertIn("1 of 1 variables are initialised", out)

    def test_a_file_that_does_not_fit_is_told_whole_before_anything_starts(self):
        file = self.save("model", "--steps", "3")[0]
        launch = ("launch_shm", "--job", self.job, "--steps", "2", "--init-from")
        self.assert_fails(1, run(*launch, file, "--data", "synthetic:20x4"), "does not fit",
                          "hid_w is [64, 128] there and [20, 40] here", "sm_b is [10] there and [4] here")
        self.assert_fails(1, run(*launch, file, "--model", "logistic"), "it lacks", "(it has: hid_b, hid_w, sm_b, sm_w)")
        self.assert_fails(1, run(*launch, self.folder / "none"), "cannot read", "No such file")
        (self.folder / "text").write_text("this is no tensor, but long enough for a header")
        self.assert_fails(1, run(*launch, self.folder / "text"), "is not a valid safetensors file")
        self.assert_fails(1, run(*launch, file, "--init-match", "xyz"), "matches no variable of the model")

    def test_variables_of_every_dtype_are_shown_and_kept_as_they_are(self):
        peer = Peer(self, "declare", self.job)
        code, out, err = run("inspect_shm", "dump", "--json", "--job", self.job)
        self.assertEqual(code, 0, err)
        variables = json.loads(out)["variables"]
        self.assertEqual(len(variables), 13)
        for variable in variables:
            self.assertEqual(variable["dtype"], variable["name"])
            self.assertEqual((variable["values"], variable["min"], variable["max"], variable["mean"]), ([1, 2, 3], 1, 3, 2))
        shown = run("inspect_shm", "dump", "--job", self.job).out
        self.assertIn("int64 [3] int64, 3 elements: min 1, max 3", shown)
        self.assertIn("float32 [3], 3 elements: min 1, max 3", shown)
        self.assertIn("[3] bfloat16", run("inspect_shm", "vars", "--job", self.job).out)
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
                    # number of updates of each element: 30 for an element with a gradient in each step
                    if layout == "inplace":
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
        self.assertIn("removing what a dead job of that name left behind", result.err)


class Page(html.parser.HTMLParser):
    """Requires that all elements are closed, in order. Keeps tags and attributes."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.open = [], [], []
        self.feed(text)
        self.close()
        if self.open:
            raise AssertionError(f"not closed: {self.open}")

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_endtag(self, tag):
        if self.open.pop() != tag:
            raise AssertionError(f"closed out of order: {tag}")


def pixels_of(path):
    """Width, height, and the rows of a PNG file of 8-bit RGB or RGBA, as browsers write it."""
    content, at, packed = path.read_bytes(), 8, b""
    while at < len(content):
        size, kind = struct.unpack(">I4s", content[at:at + 8])
        if kind == b"IHDR":
            width, height, depth, colours = struct.unpack(">IIBB", content[at + 8:at + 18])
        if kind == b"IDAT":
            packed += content[at + 8:at + 8 + size]
        at += 12 + size
    assert depth == 8 and colours in (2, 6), (depth, colours)
    bytes_each, raw = (3 if colours == 2 else 4), zlib.decompress(packed)
    row, rows = bytearray(width * bytes_each), []
    for y in range(height):
        begin = y * (1 + len(row))
        filtered, now = raw[begin], bytearray(raw[begin + 1:begin + 1 + len(row)])
        for x in range(len(row) if filtered else 0):
            left, corner = (now[x - bytes_each], row[x - bytes_each]) if x >= bytes_each else (0, 0)
            guess = left + row[x] - corner
            paeth = min((left, row[x], corner), key=lambda one: abs(guess - one))
            now[x] = now[x] + (0, left, row[x], (left + row[x]) // 2, paeth)[filtered] & 255
        row = now
        rows.append([tuple(now[x:x + 3]) for x in range(0, len(now), bytes_each)])
    return width, height, rows


class Report(FolderTest):
    def report(self, *options):
        """Makes a report; returns its text and the JSON of the run."""
        path = self.folder / "run.html"
        result = run("launch_shm", "--job", self.job, "--report", path, "--json", *options)
        self.assertEqual(result.code, 0, result.err)
        self.assertIn(f"the report is {path}; open it in a browser", result.err)
        return path.read_text(), json.loads(result.out)

    def test_it_shows_what_the_json_has_and_needs_no_other_file(self):
        text, said = self.report("--workers", "2", "--steps", "400", "--delay", "1:1ms@0.1", "--curve", "8")
        page = Page(text)
        self.assertEqual([name for name in page.tags if name in ("script", "link", "img", "iframe", "a")], [])
        self.assertEqual([value for name, value in page.attributes if name in ("src", "href", "srcset", "xlink:href")], [])
        self.assertNotRegex(text, r"url\(|@import|https?://")
        self.assertIn("prefers-color-scheme: dark", text)
        self.assertEqual(page.tags.count("svg"), 4)  # loss, accuracy, staleness, time
        self.assertEqual(page.tags.count("circle"), 2 * len(said["curve"]))
        self.assertIn(f"step {said['curve'][-1]['step']}, ", text)
        shares = [float(share) for share in re.findall(r"staleness [\d\u202f-]+: ([\d.]+) % of the pushes", text)]
        self.assertAlmostEqual(sum(shares), 100, delta=0.01 * len(shares))
        # Of a worker that starts late, the others may have made all steps.
        names = {"pull": "pull", "gradient": "gradient", "delay": "delay", "push": "push", "step": "wait"}
        shown = {(int(rank), phase) for rank, phase in re.findall(r"worker (\d+), (\w+): [\d.]+ m?s", text)}
        spent = {(worker["rank"], names[phase]) for worker in said["per_worker"]
                 for phase, seconds in worker["seconds_in"].items() if seconds > 0}
        self.assertEqual({one for one in shown if one[1] != "other"}, spent)
        self.assertTrue({"pull", "gradient", "push"} <= {phase for _, phase in spent}, spent)
        for part in (said["digest"], "--workers 2 --steps 400 --delay 1:1ms@0.1 --curve 8", "<code>--lr</code>", "processors", "compiler"):
            self.assertIn(part, text)
        self.assertIn(f"{100 * said['test_accuracy']:.2f} %", text)

    def test_its_counts_are_grouped_alike_and_narrow_screens_scroll_plots(self):
        text, said = self.report("--model", "count", "--workers", "1", "--steps", "4321")
        cells = re.findall(r'<td class="n">([^<]*)</td>', text)
        self.assertIn("4\u202f321", cells)
        self.assertEqual([cell for cell in cells if re.search(r"\d{4}", cell)], [])
        self.assertIn("<span class=\"dim\">steps</span><b>4\u202f321</b>", text)
        self.assertEqual(text.count("<svg "), text.count('<div class="scroll"><svg '))
        self.assertRegex(text, r"@media \(max-width: [\d.]+rem\) \{ svg \{ min-width: \d+rem; font-size: 1[4-9]px")
        self.assertRegex(text, r"(?m)^code \{.*overflow-wrap: break-word")  # `anywhere` would let the column shrink to a letter

    def test_it_copes_with_every_kind_of_run(self):
        for options in (["--model", "count", "--steps", "50"], ["--model", "mf", "--steps", "200"], ["--steps", "1"],
                        ["--mode", "sync", "--ema", "0.9", "--evaluate-every", "20steps", "--steps", "200"],
                        ["--lr", "1e30", "--steps", "200", "--on-nan", "warn"], ["--", "sh", "-c", f"exec {support.TOOLS}/worker_shm --rank $RANK --quiet"]):
            with self.subTest(options):
                more = ["--steps", "100"] if options[0] == "--" else []
                text, said = self.report("--workers", "2", *more, *options)
                Page(text)
                self.assertNotRegex(text, r"[\">](-?nan|-?inf)\b.*(x|y|width|height)=|=\"-?(nan|inf)")
                self.assertIn(said["digest"], text)

    def test_words_of_the_user_are_only_words(self):
        text, _ = self.report("--workers", "1", "--steps", "20", "--", "sh", "-c", f"exec {support.TOOLS}/worker_shm --rank 0 --quiet # <b>&\"")
        self.assertIn("&lt;b&gt;&amp;&quot;", text)
        Page(text)

    def test_a_file_that_cannot_be_written_is_told_before_anything_starts(self):
        self.assert_fails(1, run("launch_shm", "--job", self.job, "--report", self.folder), "it is a folder; name a file")

    def test_a_browser_shows_it_light_and_dark(self):
        browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
        if browser is None:
            self.skipTest("skipped: there is no chromium here")
        self.report("--workers", "2", "--steps", "400")
        grounds = []
        for scheme in ("1", "0"):  # as Chromium numbers them: light, dark
            picture = self.folder / f"{scheme}.png"
            done = subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={self.folder}/browser",
                                   f"--blink-settings=preferredColorScheme={scheme}", "--window-size=400,500", f"--screenshot={picture}",
                                   (self.folder / "run.html").as_uri()], capture_output=True, text=True, timeout=support.PATIENCE)
            if not picture.exists():
                self.skipTest(f"skipped: {browser} cannot run here: {done.stderr[-300:]}")
            width, height, rows = pixels_of(picture)
            self.assertEqual((width, height), (400, 500))
            grounds.append(sum(rows[1][1]))
            self.assertGreater(len({pixel for row in rows for pixel in row}), 20)
        self.assertGreater(grounds[0], 600)
        self.assertLess(grounds[1], 200)


class Places(FolderTest):
    def test_each_file_that_a_run_leaves_is_named_with_the_way_to_open_it(self):
        folder = self.folder
        launch = ["launch_shm", "--job", self.job, "--workers", "2", "--steps", "60"]
        lines = {"--checkpoint-dir": f"the newest checkpoint is {folder}/--checkpoint-dir/step-6", "--summary-dir": f"tensorboard --logdir {folder}/--summary-dir",
                 "--trace": "open it at https://ui.perfetto.dev", "--record": f"launch_shm --replay {folder}/--record"}
        for option, line in lines.items():
            with self.subTest(option):
                result = run(*launch, option, folder / option, "--json")
                self.assertEqual(result.code, 0, result.err)
                self.assertEqual(result.err.count(line), 1, result.err)
                self.assertEqual(len(result.out.splitlines()), 1)
                digest = json.loads(result.out)["digest"]
        replayed = run("launch_shm", "--job", self.job, "--replay", folder / "--record")
        self.assertIn(f"the replay ended with the digest of the recorded run, {digest}: the parameters are the same", replayed.err)
        alone = run("worker_shm", "--standalone", "--steps", "20", "--summary-dir", folder / "alone")
        self.assertIn(f"tensorboard --logdir {folder}/alone", alone.out)


if __name__ == "__main__":
    support.main()
