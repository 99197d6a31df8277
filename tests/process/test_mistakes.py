"""Typical mistakes of new users: a misspelled word, an option without effect, data that does not exist."""
import os
import pathlib
import subprocess
import sys
import tempfile

import streams
import support
from support import ProcessTest, run
from terminal import Terminal

FILES = ["train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"]


class Words(ProcessTest):
    def test_values_are_read_in_any_case_and_with_or_without_hyphens(self):
        result = run("launch_shm", "--job", self.job, "--workers", "1", "--steps", "5", "--mode", "SYNC", "--optimizer",
                     "Adam", "--layout", "Versioned", "--model", "MLP", "--json")
        self.assertEqual(result.code, 0, result.err)
        for word in ('"mode":"sync"', '"optimizer":"adam"', '"model":"mlp"'):
            self.assertIn(word, result.out)
        self.assertEqual(run("launch_shm", "--job", self.job, "--steps", "5", "--layout", "in-place").code, 0)

    def test_a_missing_value_is_called_so(self):
        self.assert_fails(2, run("inspect_shm", "show", "--job"), "--job: the value is missing; give --job NAME")

    def test_times_and_sizes_have_the_usual_units(self):
        for wait in ("5m", "5min", "1h", "300s", "300000ms"):
            with self.subTest(wait):
                self.assert_fails(1, run("worker_shm", "--job", self.job, "--wait-job", wait, "--rank", "0",
                                         "--data", "nowhere"), "nowhere")
        for size, shown in (("64K", "64KiB"), ("64k", "64KiB"), ("64KiB", "64KiB"), ("65536", "64KiB")):
            with self.subTest(size):
                self.assertEqual(run("launch_shm", "--job", self.job, "--workers", "1", "--steps", "2", "--chunk-bytes",
                                     size).code, 0, shown)

    def test_a_wait_may_have_no_limit(self):
        for limit in ("none", "None"):
            with self.subTest(limit):
                self.assert_fails(1, run("worker_shm", "--job", self.job, "--wait-job", limit, "--data", "nowhere"), "nowhere")


class Inspector(ProcessTest):
    def test_commands(self):
        self.assert_fails(2, run("inspect_shm"), "name a command: ls, show")
        self.assert_fails(2, run("inspect_shm", "wrokers"), "'wrokers' is not a command; did you mean workers?")
        self.assert_fails(2, run("inspect_shm", "frobnicate"), "'frobnicate' is not a command; the commands are ls, show")
        self.assert_fails(2, run("inspect_shm", "--job", "demo", "show"), "the command comes first")
        self.assert_fails(2, run("inspect_shm", "workers", "demo"), "'demo': name the job with --job demo")
        self.assert_fails(2, run("inspect_shm", "show", "--jbo", "demo"), "--jbo: no such option; did you mean --job?")

    def test_kinds_of_events(self):
        for more in ((), ("--follow",)):
            self.assert_fails(2, run("inspect_shm", "events", "--job", self.job, "--kind", "joind", *more),
                              "no events of kind 'joind'", "the kinds are joined, left, died,", "did you mean joined?")

    def test_arguments_of_commands(self):
        for arguments, said in ((["serve", "--port", "99999"], "--port must be at most 65535"), (["serve", "--port", "x"], "--port: 'x' is not an integer"),
                                (["dump", "--limit", "-1"], "--limit must be at least 0"), (["stats", "--sample", "many"], "--sample: 'many' is not"),
                                (["diff", "a"], "diff needs two states, each a job"), (["diff", "a", "b", "c"], "diff needs two states"),
                                (["set"], "set needs settings to change"), (["vars", "--placement", "--uninitialised"], "--uninitialised: cannot be combined with --placement")):
            with self.subTest(arguments):
                self.assert_fails(2, run("inspect_shm", *arguments), f"inspect_shm: {said}")

    def test_diff_says_what_is_neither_a_job_nor_a_folder(self):
        self.leave_a_dead_job()
        self.assert_fails(1, run("inspect_shm", "diff", self.job, "nofolder"), "nofolder is neither a job nor the folder of a checkpoint",
                          "inspect_shm ls")
        self.assert_fails(1, run("inspect_shm", "diff", "./nofolder", self.job), "./nofolder is not the folder of a checkpoint")
        self.assertEqual(run("inspect_shm", "rm", "--job", self.job).code, 0)

    def test_a_name_that_is_nearly_one_is_suggested(self):
        self.leave_a_dead_job()
        nearly = self.job[:-1] + ("x" if self.job[-1] != "x" else "y")
        for command in (["show"], ["vars"], ["workers"], ["events"], ["dump"], ["stats"], ["doctor"], ["rm"], ["set", "lr=1"],
                        ["metrics"], ["watch"]):
            with self.subTest(command):
                self.assert_fails(1, run("inspect_shm", *command, "--job", nearly), f"there is no job '{nearly}'",
                                  f"did you mean {self.job}?")
        for state in (nearly, f"{nearly}@snapshot"):
            self.assert_fails(1, run("inspect_shm", "diff", self.job, state), nearly, f"did you mean {self.job}?")
        for command in (["dump"], ["stats"]):
            self.assert_fails(1, run("inspect_shm", *command, "--job", self.job, "hid_v"), "there is no variable 'hid_v'",
                              "did you mean hid_w?")
        self.assertEqual(run("inspect_shm", "rm", "--job", self.job).code, 0)

    def leave_a_dead_job(self):
        result = run("launch_shm", "--job", self.job, "--workers", "1", "--steps", "5", "--keep-segments")
        self.assertEqual(result.code, 0, result.err)
        self.assertTrue(support.segments(self.job))

    def test_rm_wants_a_name(self):
        self.leave_a_dead_job()
        self.assert_fails(2, run("inspect_shm", "rm"), "name the job to remove with --job, or the publication with --publication,",
                          "or give --all-dead")
        self.assert_fails(2, run("inspect_shm", "rm", "--all-dead", "--job", self.job), "--all-dead")
        self.assertTrue(support.segments(self.job))
        self.assertEqual(run("inspect_shm", "rm", "--job", self.job).code, 0)
        self.assertEqual(support.segments(self.job), [])

    def test_rm_of_all_dead_jobs_needs_a_yes_where_nobody_can_be_asked(self):
        self.leave_a_dead_job()
        self.assert_fails(2, run("inspect_shm", "rm", "--all-dead"), "--all-dead", "no terminal", "--yes")
        self.assertTrue(support.segments(self.job))
        self.assertEqual(run("inspect_shm", "rm", "--job", self.job).code, 0)

    def test_rm_asks_at_a_terminal(self):
        self.leave_a_dead_job()
        for answer, code in (("n", 1), ("", 1), ("y", 0)):
            with self.subTest(answer), Terminal(80, "inspect_shm", "rm", "--job", self.job) as terminal:
                terminal.read_until(lambda: "[y/N]" in terminal.shown, "the question")
                self.assertTrue(support.segments(self.job))
                os.write(terminal.here, (answer + "\n").encode())
                self.assertEqual(terminal.finish(), code, terminal.shown)
        self.assertEqual(support.segments(self.job), [])
        self.leave_a_dead_job()
        with Terminal(80, "inspect_shm", "rm", "--yes", "--job", self.job) as terminal:
            self.assertEqual(terminal.finish(), 0, terminal.shown)

    def test_rm_of_all_dead_jobs_spares_kept_and_live_ones(self):
        # In a private /dev/shm, as the machine may have dead jobs of the user who runs the tests.
        script = """mount -t tmpfs tmpfs /dev/shm && cd "$0" || exit 77
            ./launch_shm --job kept --workers 1 --steps 5 --keep-segments >/dev/null
            ./ps_shm --job live >/dev/null & live=$!
            ./ps_shm --job dead >/dev/null & dead=$!
            until [ -e /dev/shm/ps_shm.live.0 ] && [ -e /dev/shm/ps_shm.dead.0 ]; do sleep 0.01; done
            kill -9 $dead; wait $dead 2>/dev/null
            ./inspect_shm rm --all-dead --yes; ls /dev/shm
            kill $live; wait $live"""
        if not support.may_mount():
            self.skipTest("skipped: no mounts of one's own are allowed here")
        process = subprocess.Popen(["unshare", "-m", "sh", "-c", script, str(support.TOOLS)], text=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env=support.environment())
        result = support.finish(process)
        self.assertIn("job dead: reclaimed", result.out, result.err)
        self.assertEqual(result.out.split()[-4:], ["ps_shm.kept", "ps_shm.kept.0", "ps_shm.live", "ps_shm.live.0"], result.out)


class Ignored(ProcessTest):
    def test_a_variable_that_the_model_has_not_cannot_be_placed(self):
        self.assert_fails(1, run("launch_shm", "--job", self.job, "--ps-tasks", "2", "--place", "hid_v=1"),
                          "no variable 'hid_v'", "did you mean hid_w?")
        self.assert_fails(1, run("launch_shm", "--job", self.job, "--model", "count", "--place", "x=0"), "it has var")

    def test_a_worker_does_not_take_the_settings_of_its_job(self):
        result = run("worker_shm", "--job", self.job, "--wait-job", "1ms", env={"PS_SHM_LR": "0.5"})
        self.assertIn("there is no such job yet", result.err)  # the ps and the workers may share an environment

    def test_a_misspelt_variable_of_the_environment_is_named(self):
        result = run("launch_shm", "--job", self.job, "--workers", "1", "--steps", "5", env={"PS_SHM_WROKERS": "2"})
        self.assertEqual(result.code, 0, result.err)
        self.assertEqual(result.err.count("PS_SHM_WROKERS"), 1, result.err)
        self.assertIn("the environment variable PS_SHM_WROKERS does not name an option; did you mean PS_SHM_WORKERS?", result.err)

    def test_variables_of_other_programs_are_passed_over(self):
        others = {"PS_FORMAT": "pid,cmd", "PS_PERSONALITY": "gnu",  # ps of procps
                  "PS_VERBOSE": "1",  # ps-lite and BytePS
                  "PS_SERVICE_HOST": "10.0.0.1", "PS_SERVICE_PORT": "80", "PS_PORT": "tcp://10.0.0.1:80",
                  "PS_PORT_80_TCP": "tcp://10.0.0.1:80", "PS_PORT_80_TCP_PROTO": "tcp", "PS_PORT_80_TCP_PORT": "80",
                  "PS_PORT_80_TCP_ADDR": "10.0.0.1",  # Kubernetes, for a service called ps
                  "PS_STEPS": "many", "PS_JOB": "another", "PS_WORKERS": "none"}
        result = run("launch_shm", "--job", self.job, "--workers", "1", "--steps", "5", env=others)
        self.assertEqual(result.code, 0, result.err)
        self.assertNotIn("PS_", result.err)
        show = ["bash", "-c", "env | grep ^PS_ | grep -v ^PS_SHM_ | sort"]
        result = run("launch_shm", "--job", self.job, "--workers", "1", "--", *show, env=others)
        self.assertEqual(result.code, 1, result.err)  # it has not joined the job
        self.assertNotIn("PS_", result.err.replace("PS_SHM_JOB", ""))
        for name, value in others.items():  # and a program that we start still gets them
            self.assertIn(f"{name}={value}", result.out)
        result = run("inspect_shm", "ls", env=others)
        self.assertEqual((result.code, result.err), (0, ""))


# A seccomp filter as Docker's default one, then a program.
AS_IN_DOCKER = """import os, platform, sys
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
import surrounding_kinds
try:
    surrounding_kinds.refuse(list(surrounding_kinds.REFUSED[platform.machine()].values()))
except (OSError, KeyError):
    sys.exit(77)
os.execv(sys.argv[2], sys.argv[2:])
"""


class BeforeAnythingStarts(ProcessTest):
    def test_a_container_that_refuses_calls_about_memory_nodes_is_worth_no_line(self):
        for words in (["launch_shm", "--job", self.job, "--steps", "20", "--numa", "auto", "--ps-tasks", "2", "--json"], ["inspect_shm", "doctor", "--json"]):
            with self.subTest(words[0]):
                result = run(sys.executable, "-c", AS_IN_DOCKER, support.SOURCE / "tests", support.TOOLS / words[0], *words[1:])
                if result.code == 77:
                    self.skipTest("skipped: no seccomp filter can be set here")
                self.assertIn(result.code, (0, 3) if words[0] == "inspect_shm" else (0,), result.err)
                self.assertEqual(streams.without_waits(result.err), "")

    def test_a_batch_has_at_most_all_examples(self):
        for options in ([], ["--model", "logistic", "--data", "zipf:50x2000"]):
            for program in (["launch_shm", "--job", self.job], ["worker_shm", "--standalone"]):
                with self.subTest(program=program[0], options=options):
                    self.assert_fails(1, run(*program, *options, "--batch", "100000"), "--batch 100000: exceeds the ", " training examples of ")
        self.assert_fails(1, run("worker_shm", "--job", self.job, "--batch", "1438"), "--batch 1438: exceeds the 1437 training examples of digits")
        self.assertEqual(run("worker_shm", "--standalone", "--batch", "1437", "--steps", "1").code, 0)

    def test_a_folder_that_cannot_be_made_says_why(self):
        place = f"/sys/{self.job}"  # no user can make a folder there
        for program in (["launch_shm", "--job", self.job], ["ps_shm", "--job", self.job], ["worker_shm", "--standalone"]):
            with self.subTest(program[0]):
                said = self.assert_fails(1, run(*program, "--checkpoint-dir", place, "--steps", "5"), place)
                self.assertRegex(said, "denied|permitted|[Rr]ead-only")
        said = self.assert_fails(1, run("launch_shm", "--job", self.job, "--record", place), f"--record {place}: ")
        self.assertRegex(said, "denied|permitted|[Rr]ead-only")

    def test_a_recording_that_is_not_there_is_called_so(self):
        self.assert_fails(1, run("launch_shm", "--replay", "nofolder"), "--replay nofolder: there is no such folder")
        self.assert_fails(1, run("launch_shm", "--replay", __file__), f"--replay {__file__}: it is not a folder")
        with tempfile.TemporaryDirectory() as folder:
            self.assert_fails(1, run("launch_shm", "--replay", folder), "launch.json is missing")

    def test_the_name_of_a_worker_stands_once_before_its_lines(self):
        result = run("launch_shm", "--job", self.job, "--workers", "2", "--steps", "50", "--verbose")
        self.assertRegex(result.err, r"(?m)^\[worker [01]\] ")  # one of them may take all steps
        self.assertNotRegex(result.err, r"worker (\d)\] worker \1:")

    def in_own_namespace(self, setup, *command):
        if not support.may_mount():
            self.skipTest("skipped: no mounts of one's own are allowed here")
        process = subprocess.Popen(["unshare", "-m", "sh", "-c", f'{setup} && exec "$@"', "sh", *map(str, command)], text=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=support.environment())
        return support.finish(process)

    def test_a_shm_without_inodes_is_called_so(self):
        result = self.in_own_namespace("mount -t tmpfs -o nr_inodes=1 tmpfs /dev/shm", support.TOOLS / "ps_shm", "--job", self.job)
        said = self.assert_fails(1, result, "no inodes left", "nr_inodes")
        self.assertNotIn("check that a tmpfs is mounted", said)

    def test_a_machine_without_proc_is_called_so(self):
        result = self.in_own_namespace("umount -l /proc", support.TOOLS / "ps_shm", "--job", self.job)
        self.assert_fails(1, result, "/proc is not mounted")
        result = self.in_own_namespace("umount -l /proc", support.TOOLS / "launch_shm", "--job", self.job)
        self.assert_fails(1, result, "/proc is not mounted")

    def test_a_gpu_that_is_not_there_is_one_error(self):
        self.assert_fails(1, run("launch_shm", "--job", self.job, "--device", "cuda:77"), "device cuda:77")

    def test_auto_says_once_that_there_is_no_gpu(self):
        result = run("launch_shm", "--job", self.job, "--workers", "3", "--steps", "20", "--device", "auto",
                     env={"CUDA_VISIBLE_DEVICES": ""})
        self.assertEqual(result.code, 0, result.err)
        self.assertEqual(result.err.count("continues with the CPU"), 1, result.err)

    def test_all_missing_files_are_named(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assert_fails(1, run("launch_shm", "--job", self.job, "--data", folder), *FILES)
            (pathlib.Path(folder) / "t10k-labels-idx1-ubyte").touch()
            said = self.assert_fails(1, run("launch_shm", "--job", self.job, "--data", folder), *FILES[:3])
            self.assertNotIn(FILES[3], said)
            self.assertIn("t10k-images-idx3}-ubyte.gz", said)  # what gets those that are missing
        for data in ("mnist", "/none/mnist"):
            self.assert_fails(1, run("launch_shm", "--job", self.job, "--data", data), f"data source '{data}'", *FILES,
                              "curl -O 'https://")

    def test_csv_is_recognised(self):
        with tempfile.TemporaryDirectory() as folder:
            table = pathlib.Path(folder) / "table.csv"
            table.write_text("1,0.5,0.25,3\n0,0.125,0.5,4\n")
            self.assert_fails(1, run("launch_shm", "--job", self.job, "--data", table), "CSV is not supported")
            self.assert_fails(1, run("launch_shm", "--job", self.job, "--model", "svm", "--format", "libsvm", "--data",
                                     table), "looks like CSV", "label index:value")

    def test_tools_run_knows_options_before_it_builds(self):
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder)
            (copy / "tools").mkdir()
            (copy / "docs").mkdir()
            for name in ("tools/run", "tools/setup.sh", "docs/options.md"):
                (copy / name).write_bytes((support.SOURCE / name).read_bytes())
            (copy / "tools" / "run").chmod(0o755)
            for wrong in (["--worker", "3"], ["--steps", "10", "--worker=3"]):
                result = subprocess.run([copy / "tools" / "run", *wrong], capture_output=True, text=True,
                                        timeout=support.PATIENCE)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertIn("--worker: no such option", result.stderr)
                self.assertFalse((copy / "build").exists())


if __name__ == "__main__":
    support.main()
