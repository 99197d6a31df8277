"""inspect_shm metrics and serve, as read by Prometheus's own parsers."""
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import pathlib
import urllib.request

import support
from support import Peer, ProcessTest, run

# The sample names with labels and values, and the types of the families, as each parser returns them.
PARSE = """
import json, sys
from prometheus_client.%s import text_string_to_metric_families
families = list(text_string_to_metric_families(sys.stdin.read()))
json.dump([{f.name: f.type for f in families},
           [[s.name, s.labels, s.value] for f in families for s in f.samples],
           [f.name for f in families if not f.documentation]], sys.stdout)
"""


def parse(text, parser="parser"):
    done = subprocess.run([support.venv_python(), "-c", PARSE % parser], input=text, capture_output=True, text=True,
                          timeout=support.PATIENCE)
    if done.returncode != 0:
        raise AssertionError(f"{done.stderr}\n{text}")
    types, samples, undocumented = json.loads(done.stdout)
    if undocumented:
        raise AssertionError(f"without help: {undocumented}")
    return types, samples


class Metrics(ProcessTest):
    def setUp(self):
        super().setUp()
        self.launch("--workers", "2", "--steps", "300", "--keep-segments")

    def tearDown(self):
        run("inspect_shm", "rm", "--job", self.job)
        super().tearDown()

    def text(self, *more):
        code, out, err = run("inspect_shm", "metrics", "--job", self.job, *more)
        self.assertEqual(code, 0, err)
        return out

    def value(self, samples, name, **labels):
        (found,) = [value for sample, of, value in samples if sample == name and of == {"job": self.job, **labels}]
        return found

    def test_both_parsers_read_the_same(self):
        types, samples = parse(self.text("--values"))
        open_types, open_samples = parse(self.text("--values", "--openmetrics"), "openmetrics.parser")
        self.assertEqual(types, open_types)
        as_seen = lambda all: sorted([name, sorted((key, float(text) if key == "le" else text) for key, text in labels.items()),
                                      value] for name, labels, value in all if "filesystem" not in name)
        self.assertEqual(as_seen(samples), as_seen(open_samples))

    def test_the_figures_are_those_of_the_other_commands(self):
        types, samples = parse(self.text())
        show = json.loads(run("inspect_shm", "show", "--job", self.job, "--json").out)
        self.assertEqual(self.value(samples, "ps_shm_global_steps_total"), show["global_step"])
        self.assertEqual(self.value(samples, "ps_shm_job_bytes", part="values"), show["bytes"]["values"])
        self.assertEqual(self.value(samples, "ps_shm_job_state", state="dead"), 1)
        pushes = 0
        for worker in support.workers_of(self.job):
            rank = str(worker["rank"])
            self.assertEqual(self.value(samples, "ps_shm_worker_steps_total", rank=rank), worker["steps"])
            self.assertAlmostEqual(self.value(samples, "ps_shm_worker_training_loss", rank=rank), worker["training_loss"])
            pushes += worker["pushes"]
        self.assertEqual(self.value(samples, "ps_shm_workers", state="left"), 2)
        counts = [value for name, of, value in samples if name == "ps_shm_staleness_updates_bucket"]
        self.assertEqual(counts, sorted(counts))
        self.assertEqual(counts[-1], self.value(samples, "ps_shm_staleness_updates_count"))
        self.assertGreaterEqual(counts[-1], pushes)
        self.assertEqual(types["ps_shm_staleness_updates"], "histogram")

    def test_names_are_as_the_conventions_have_them(self):
        types, samples = parse(self.text("--values"))
        for name, type in types.items():
            self.assertRegex(name, r"^ps_shm_[a-z0-9_]+$")
            self.assertNotRegex(name, r"_(ms|milliseconds|kb|mb|mib|percent)(_|$)")
        for name, _, _ in samples:
            family = name.removesuffix("_total")
            if types.get(family) == "counter":
                self.assertTrue(name.endswith("_total"), name)
        page = (support.SOURCE / "docs" / "inspector.md").read_text()
        for name, type in types.items():
            self.assertIn(f"`{name}_total`" if type == "counter" else f"`{name}`", page)

    def test_of_other_states_there_is_the_state(self):
        with open(support.SHM / f"ps_shm.{self.job}", "r+b") as control:
            control.truncate(4096)
        code, out, err = run("inspect_shm", "metrics")
        self.assertEqual(code, 0, err)
        _, samples = parse(out)
        self.assertEqual({name: of for name, of, _ in samples if of.get("job") == self.job},
                         {"ps_shm_job_state": {"job": self.job, "state": "damaged"}})
        self.assert_fails(1, run("inspect_shm", "metrics", "--job", self.job), "damaged")
        run("inspect_shm", "rm", "--force", "--job", self.job)

    def test_a_publication_has_some(self):
        Peer(self, "publish", self.job, 3)
        _, samples = parse(run("inspect_shm", "metrics").out)
        self.assertIn(["ps_shm_publication_generations_total", {"publication": self.job}, 3.0], samples)

    def test_rows_of_a_table_that_are_no_numbers_are_counted(self):
        job = f"{self.job}-odd"
        peer = Peer(self, "declare-odd-table", job)
        _, samples = parse(run("inspect_shm", "metrics", "--values", "--job", job).out)
        of_values = {name: value for name, of, value in samples if name.startswith("ps_shm_table_rows_")}
        self.assertEqual((of_values["ps_shm_table_rows_read"], of_values["ps_shm_table_rows_nonfinite"]), (100, 2))
        shown = run("inspect_shm", "show", "items", "--job", job).out
        self.assertIn("NaN or infinities in 2 rows, of 100 whose values were read\n", shown)
        page = (support.SOURCE / "docs" / "inspector.md").read_text()
        self.assertLessEqual({name for name, of, _ in samples if "table" in of},
                             {name for name in page.replace("`", " ").replace(",", " ").split() if name.startswith("ps_shm_")})
        self.assertEqual(peer.end(), 0)

    def test_a_text_file_appears_complete(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "ps.prom"
            file.write_text("old")
            reader = file.open()
            self.assertEqual(self.text("--textfile", file), "")
            # the file is replaced by a rename: a reader of the old one sees all of it
            self.assertEqual(reader.read(), "old")
            reader.close()
            self.assertEqual(parse(file.read_text())[0], parse(self.text())[0])
            self.assertEqual(os.listdir(folder), ["ps.prom"])
            self.assert_fails(1, run("inspect_shm", "metrics", "--textfile", f"{folder}/none/x.prom"), "none/x.prom")

    def test_it_is_served_on_the_loopback_address_until_it_is_interrupted(self):
        server = self.start("inspect_shm", "serve", "--port", "0", "--job", self.job, "--json")
        url = json.loads(support.read_line(server.stdout))["url"]
        self.assertRegex(url, r"^http://127\.0\.0\.1:\d+/metrics$")
        for _ in range(2):
            with urllib.request.urlopen(url, timeout=support.PATIENCE) as answer:
                _, samples = parse(answer.read().decode())
            self.assertEqual(self.value(samples, "ps_shm_workers", state="left"), 2)
        port = url.split(":")[2].split("/")[0]
        self.assert_fails(1, run("inspect_shm", "serve", "--port", port), "cannot listen", port)
        listening = [line.split()[1] for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]
                     if line.split()[3] == "0A" and line.split()[1].endswith(f":{int(port):04X}")]
        self.assertEqual(listening, [f"0100007F:{int(port):04X}"])
        server.send_signal(signal.SIGINT)
        self.assertEqual(support.finish(server).code, 130)

    def test_head_is_answered_without_a_body_and_other_methods_are_refused(self):
        server = self.start("inspect_shm", "serve", "--port", "0", "--job", self.job)
        url = support.read_line(server.stdout).strip()
        address = url.removeprefix("http://").split("/")[0]
        for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"):
            with self.subTest(method), contextlib.closing(
                    http.client.HTTPConnection(address, timeout=support.PATIENCE)) as client:
                client.request(method, "/metrics")
                answer = client.getresponse()
                body = answer.read().decode()
                if method in ("GET", "HEAD"):
                    self.assertEqual((answer.status, self.job in body), (200, method == "GET"))
                    self.assertGreater(int(answer.headers["Content-Length"]), 1000)
                else:
                    self.assertEqual((answer.status, answer.headers["Allow"], body), (405, "GET, HEAD", ""))
        server.terminate()
        self.assertEqual(support.finish(server).code, 130)

    def test_an_ipv6_address_is_served_or_its_lack_is_named(self):
        server = self.start("inspect_shm", "serve", "--port", "0", "--address", "::1")
        if line := server.stdout.readline():
            self.assertRegex(line, r"^http://\[::1\]:\d+/metrics$")
            server.terminate()
        code, _, err = support.finish(server)
        if code != 130 and "interface" not in err:
            self.assertRegex(err, r"^inspect_shm: cannot listen on \[::1\]: the library civetweb of this machine has no IPv6")

    def test_clients_that_send_nothing_hold_up_no_scrape(self):
        server = self.start("inspect_shm", "serve", "--port", "0", "--job", self.job)
        url = support.read_line(server.stdout).strip()
        address = url.removeprefix("http://").split("/")[0].split(":")
        # More than there are threads: each is waited for only a moment, not until it goes.
        idle = [socket.create_connection((address[0], int(address[1]))) for _ in range(20)]
        with urllib.request.urlopen(url, timeout=support.PATIENCE) as answer:
            self.assertIn(self.job, answer.read().decode())
        for client in idle:
            client.close()
        server.terminate()
        self.assertEqual(support.finish(server).code, 130)

    def test_it_goes_on_when_a_job_has_gone(self):
        server = self.start("inspect_shm", "serve", "--port", "0")
        url = support.read_line(server.stdout).strip()
        run("inspect_shm", "rm", "--job", self.job)
        with urllib.request.urlopen(url, timeout=support.PATIENCE) as answer:
            self.assertNotIn(self.job, answer.read().decode())
        server.terminate()
        self.assertEqual(support.finish(server).code, 130)


if __name__ == "__main__":
    support.main()
