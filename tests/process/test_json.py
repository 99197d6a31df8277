"""docs/json.md and the JSON that the programs print: the tables list exactly the keys that are printed."""
import json
import re
import tempfile

import support
from support import Peer, ProcessTest, run

PAGE = (support.SOURCE / "docs" / "json.md").read_text()
OPEN = ("settings", "live", "cuda")  # objects whose keys another page documents


def keys_of(value, path=""):
    """The paths of all values except objects and lists of objects."""
    if isinstance(value, dict) and path not in OPEN:
        return {key for name, one in value.items() for key in keys_of(one, f"{path}.{name}" if path else name)}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return {key for one in value for key in keys_of(one, path + "[]")}
    return {path}


def rows(heading):
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| `"):
            yield cells


def told(heading, command=None):
    return {key for cells in rows(heading) if command is None or cells[0] == f"`{command}`"
            for key in re.findall(r"`([^`]+)`", cells[0 if command is None else 1])}


class Keys(ProcessTest):
    def printed(self, *command):
        code, out, err = run(*command)
        self.assertEqual(code, 0, err)
        return json.loads(out)

    def test_a_launch(self):
        known, seen = told("launch_shm, worker_shm"), set()
        evaluated = ["--curve", "2", "--evaluate-every", "20steps", *support.GATED_DELAY]
        for arguments in (["--mode", "ssp", "--ema", "0.9", "--curve", "2"], ["--model", "count"], ["--model", "mf", *evaluated],
                          ["--model", "logistic", *evaluated], ["--model", "fm", "--keyed"]):
            with self.subTest(arguments):
                gate = self.close_gate()
                launch = self.start("launch_shm", "--job", self.job, "--workers", "2", "--steps", "200", "--json", *arguments,
                                    env=gate.env)
                if "--evaluate-every" in arguments:
                    support.wait_for_line(launch.stderr, "test loss")
                gate.open()
                code, out, err = support.finish(launch)
                self.assertEqual(code, 0, err)
                keys = keys_of(json.loads(out))
                self.assertLessEqual(keys, known)
                seen |= keys
        self.assertEqual(known - seen, {"per_worker[].gpu"})

    def test_a_worker_alone(self):
        self.assertLessEqual(keys_of(self.printed("worker_shm", "--standalone", "--steps", "20", "--json")),
                             told("launch_shm, worker_shm"))

    def test_the_inspector(self):
        self.printed("launch_shm", "--job", self.job, "--workers", "2", "--mode", "sync", "--steps", "20", "--json",
                     "--keep-segments")
        publisher, reader = Peer(self, "write", self.job, 0, 1, 1), Peer(self, "read", self.job)
        for option in ("--uninitialised", "--placement"):
            self.assertEqual(keys_of(self.printed("inspect_shm", "vars", option, "--json", "--job", self.job)),
                             told("inspect_shm", f"vars {option}"))
        with tempfile.TemporaryDirectory() as folder:
            for heading, *command in (("dump --npy FILE.npy", "dump", "hid_b", "--npy", f"{folder}/b.npy"),
                                      ("stats", "stats", "hid_b")):
                self.assertEqual(keys_of(self.printed("inspect_shm", *command, "--json", "--job", self.job)),
                                 told("inspect_shm", heading))
        self.printed("launch_shm", "--job", f"{self.job}-b", "--workers", "1", "--steps", "5", "--json", "--keep-segments",
                     "--model", "softmax")
        result = run("inspect_shm", "diff", self.job, self.job, "--json")
        self.assertEqual(result.code, 0, result.err)
        keys = keys_of(json.loads(result.out))
        result = run("inspect_shm", "diff", self.job, f"{self.job}-b", "--json")
        self.assertEqual(result.code, 3, result.err)
        of_diff = (keys | keys_of(json.loads(result.out))) - {"unlike", "tables"}  # empty lists
        result = run("inspect_shm", "doctor", "--job", self.job, "--json")
        may_be_empty = {f"{name}[].{key}" for name in ("findings", "advice") for key in ("kind", "job", "what", "todo")}
        keys = keys_of(json.loads(result.out)) | may_be_empty
        self.assertIn(result.code, (0, 3), result.err)
        self.assertEqual(keys - {"findings", "advice", "publications"}, told("inspect_shm", "doctor"))
        odd = Peer(self, "declare-odd", f"{self.job}-odd")
        result = run("inspect_shm", "doctor", "--job", f"{self.job}-odd", "--nan-watch", "1s", "--json")
        keys = {key for key in keys_of(json.loads(result.out)) if key.startswith("nan.")}
        self.assertEqual((result.code, keys), (3, told("inspect_shm", "doctor --nan-watch")))
        self.assertEqual(odd.end(), 0)
        self.assertEqual(keys_of(self.printed("inspect_shm", "metrics", "--json")), told("inspect_shm", "metrics"))
        server = self.start("inspect_shm", "serve", "--port", "0", "--json")
        self.assertEqual(keys_of(json.loads(support.read_line(server.stdout))), told("inspect_shm", "serve"))
        server.terminate()
        self.printed("inspect_shm", "rm", "--job", f"{self.job}-b", "--json")
        table = Peer(self, "declare-table", f"{self.job}-table")
        shown = keys_of(self.printed("inspect_shm", "show", "items", "--json", "--job", f"{self.job}-table"))
        self.assertEqual(shown, told("inspect_shm", "show TABLE"))
        of_table = {command: {key for key in keys_of(self.printed("inspect_shm", command, *words, "--json", "--job",
                                                                  f"{self.job}-table")) if key.startswith("tables[]")}
                    for command, *words in (["vars"], ["dump", "items"])}
        result = run("inspect_shm", "diff", f"{self.job}-table", f"{self.job}-table", "--json")
        of_diff |= {key for key in keys_of(json.loads(result.out)) if key.startswith("tables[]")}
        self.assertEqual(of_diff, told("inspect_shm", "diff"))
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(keys_of(self.printed("inspect_shm", "dump", "items", "--npy", f"{folder}/t.npy", "--json", "--job",
                                                  f"{self.job}-table")), told("inspect_shm", "dump TABLE --npy FILE.npy"))
        self.assertEqual(table.end(), 0)
        for command, *words in (["ls"], ["show"], ["vars"], ["workers"], ["events"], ["dump", "hid_b"], ["rm"],
                                ["publications"]):
            with self.subTest(command):
                job = {"ls": [], "publications": ["--publication", self.job]}.get(command, ["--job", self.job])
                keys = keys_of(self.printed("inspect_shm", command, *words, "--json", *job)) - {"tables", "bridge"}  # none
                known = {key for key in told("inspect_shm", command) if not key.startswith("bridge.")}  # see test_bridge.py
                self.assertEqual(keys | of_table.get(command, set()), known)

        publisher.kill()
        reader.kill()
        self.assertEqual(keys_of(self.printed("inspect_shm", "rm", "--publication", self.job, "--json")),
                         told("inspect_shm", "rm --publication"))

    def test_a_job_of_another_layout(self):
        self.printed("launch_shm", "--job", self.job, "--workers", "1", "--steps", "5", "--json", "--keep-segments")
        with open(support.SHM / f"ps_shm.{self.job}", "r+b") as control:
            control.seek(8)
            control.write(b"\xff")
        self.assertEqual(keys_of(self.printed("inspect_shm", "show", "--job", self.job, "--json")),
                         {key for cells in rows("inspect_shm") if cells[0].startswith("`show`, of another")
                          for key in re.findall(r"`([^`]+)`", cells[1])})
        run("inspect_shm", "rm", "--job", self.job, "--force")

    def test_a_failure_is_an_object(self):
        for code, *command in ((1, "launch_shm", "--job", self.job, "--data", "/none"), (2, "launch_shm", "--wrokers", "2"),
                               (1, "inspect_shm", "show", "--job", "none"), (2, "inspect_shm", "shw"),
                               (1, "worker_shm", "--job", self.job, "--wait-job", "1ms")):
            with self.subTest(command):
                got, out, err = run(*command, "--json")
                self.assertEqual(got, code)
                failure = json.loads(out)
                self.assertEqual(set(failure), {"error", "exit_code"})
                self.assertEqual(failure["exit_code"], code)
                self.assertIn(failure["error"], err)

    def test_an_interrupted_launch_is_an_object(self):
        launch = self.start("launch_shm", "--job", self.job, "--workers", "1", "--steps", "100000000", "--json")
        support.wait_until(lambda: any(worker["steps"] > 0 for worker in support.workers_of(self.job) or []), "steps")
        launch.terminate()
        code, out, _ = support.finish(launch)
        self.assertEqual((code, json.loads(out)["exit_code"]), (130, 130))


if __name__ == "__main__":
    support.main()
