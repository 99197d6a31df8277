"""--checkpoint-dir: a run writes checkpoints while it trains, and a later run resumes from them."""
import errno
import fcntl
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time

import support
from support import ProcessTest, run

STEPS = ("--steps", "1000")


class Checkpoints(ProcessTest):
    def setUp(self):
        super().setUp()
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place = pathlib.Path(place.name)
        self.folder = self.place / "run"

    def steps_there(self):
        return sorted(int(path.name[5:]) for path in self.folder.glob("step-*"))

    def facts(self, step):
        return json.loads((self.folder / f"step-{step}/checkpoint.json").read_text())

    def losses(self, steps):
        """Of those whose workers had said one: a checkpoint may come before the first."""
        return [loss for step in steps if (loss := self.facts(step)["loss"]) is not None]

    def in_python(self, program, *arguments):
        done = subprocess.run([support.venv_python(), "-c", program, *map(str, arguments)], capture_output=True, text=True, timeout=support.PATIENCE)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_a_sync_run_that_is_killed_ends_with_the_same_bits(self):
        settings = "--mode", "sync", "--workers", "2", "--optimizer", "adam", "--ema", "0.99", "--clip-norm", "5"
        whole = self.launch(*settings, *STEPS)
        gate = self.close_gate(260)  # so that it is killed before step 1000
        launch = self.start("launch_shm", "--job", self.job, *settings, "--steps", "100000000", "--checkpoint-dir", self.folder,
                            "--checkpoint-every", "50steps", *support.GATED_DELAY, start_new_session=True, env=gate.env)
        support.wait_until(lambda: self.steps_there(), "a checkpoint")
        os.killpg(launch.pid, signal.SIGKILL)
        launch.communicate()
        support.wait_until(lambda: not support.programs_of(self.job), "the end of all")
        self.assertLess(self.steps_there()[-1], 1000)
        rest = self.launch(*settings, *STEPS, "--checkpoint-dir", self.folder, "--replace", "--ps-tasks", "2", "--placement",
                           "partition")
        self.assertEqual((rest["digest"], rest["steps"]), (whole["digest"], 1000))
        self.assertGreater(rest["first_step"], 0)

    def test_the_first_half_and_the_second_are_the_whole_of_a_sync_run(self):
        settings = "--mode", "sync", "--workers", "3", "--optimizer", "momentum", "--lr-schedule", "step:0.5:200"
        whole = self.launch(*settings, *STEPS)
        self.launch(*settings, "--steps", "500", "--checkpoint-dir", self.folder)
        self.assertEqual(self.steps_there(), [500])
        self.assertEqual(self.facts(500)["examples"], [16000] * 3)
        rest = self.launch(*settings, *STEPS, "--checkpoint-dir", self.folder)
        self.assertEqual((rest["digest"], rest["first_step"]), (whole["digest"], 500))
        self.assertLess(abs(rest["steps_per_second"] * rest["seconds"] - 500), 1)

    def test_nothing_that_an_async_cut_has_is_lost_or_counted_twice(self):
        count = "--model", "count", "--count-size", "3000", "--workers", "3"
        self.launch(*count, "--steps", "20000", "--checkpoint-dir", self.folder, "--checkpoint-every", "1000steps", "--keep-checkpoints", "1000")
        cuts = self.steps_there()
        self.assertEqual(cuts[-1], 60000)
        program = """
import json, sys, safetensors.numpy
for folder in sys.argv[1:]:
    values = safetensors.numpy.load_file(folder + "/model.safetensors")["var"]
    facts = json.load(open(folder + "/checkpoint.json"))
    (variable,) = facts["variables"]
    low, high = values.min(), values.max()
    assert high - low <= len(facts["partial_ranks"]), (folder, low, high, facts)
    assert low <= variable["updates"] <= high, (folder, low, high, facts)
    print(int(low) if not facts["partial_ranks"] else -1)
"""
        values = list(map(int, self.in_python(program, *(self.folder / f"step-{step}" for step in cuts)).split()))
        self.assertEqual(values[-1], 60000)
        # If the machine stops a worker within a push for longer than a snapshot waits, the snapshot contains part of
        # that push.
        exact = [step for step, value in zip(cuts, values) if value >= 0]
        middle = exact[max(len(exact) // 2 - 1, 0)]
        for step in cuts:
            if step > middle:
                subprocess.run(["rm", "-r", str(self.folder / f"step-{step}")], check=True)
        rest = self.launch(*count, "--steps", "1000", "--checkpoint-dir", self.folder)
        self.assertEqual(rest["value"], values[cuts.index(middle)] + 3000)

    def test_python_reads_what_was_written_and_torch_loads_it_into_a_module(self):
        self.launch("--workers", "2", "--steps", "300", "--optimizer", "adam", "--ema", "0.9", "--checkpoint-dir", self.folder,
                    "--keep-segments")
        (step,) = self.steps_there()
        folder = self.folder / f"step-{step}"
        run("inspect_shm", "dump", "--npy", self.place / "npy", "--job", self.job)
        program = """
import json, pathlib, sys, numpy, safetensors.numpy, safetensors.torch, torch
folder, npy = map(pathlib.Path, sys.argv[1:])
model = safetensors.torch.load_file(folder / "model.safetensors")
slots = safetensors.numpy.load_file(folder / "optimizer.safetensors")
averages = safetensors.numpy.load_file(folder / "ema.safetensors")
for variable in json.load(open(npy / "index.json"))["variables"]:
    name = variable["name"]
    assert numpy.load(npy / variable["file"]).tobytes() == model[name].numpy().tobytes(), name
    for slot, file in variable["slots"].items():
        there = averages[name] if slot == "ema" else slots[name + "." + slot]
        assert numpy.load(npy / file).tobytes() == there.tobytes(), (name, slot)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for name, tensor in model.items():
            self.register_parameter(name, torch.nn.Parameter(torch.empty(tensor.shape)))
net = Net()
print(net.load_state_dict(model, strict=True), len(model), len(slots), len(averages))
"""
        self.assertEqual(self.in_python(program, folder, self.place / "npy"), "<All keys matched successfully> 4 8 4\n")
        self.assertEqual(run("inspect_shm", "rm", "--job", self.job).code, 0)

    def test_a_run_without_a_ps_writes_the_same_files_and_reads_those_of_a_job(self):
        for settings in (["--optimizer", "adam"], ["--model", "logistic", "--data", "zipf:500x2000", "--optimizer", "ftrl"]):
            with self.subTest(settings[1]):
                alone, job = self.place / f"alone{settings[1]}", self.place / f"job{settings[1]}"
                mode = ["--mode", "sync"] if len(settings) == 2 else []
                self.assertEqual(run("worker_shm", "--standalone", *settings, "--steps", "120", "--checkpoint-dir", alone).code, 0)
                self.launch("--workers", "1", *mode, *settings, "--steps", "120", "--checkpoint-dir", job)
                for name in "model.safetensors", "optimizer.safetensors":
                    self.assertEqual((alone / "step-120" / name).read_bytes(), (job / "step-120" / name).read_bytes())
                facts = [json.loads((folder / "step-120/checkpoint.json").read_text()) for folder in (alone, job)]
                self.assertEqual(list(facts[0]), list(facts[1]))
                for key in "global_step", "learning_rate", "examples", "files":
                    self.assertEqual(facts[0][key], facts[1][key], key)
                whole = json.loads(run("worker_shm", "--standalone", *settings, "--steps", "200", "--json").out)
                rest = json.loads(run("worker_shm", "--standalone", *settings, "--steps", "200", "--json", "--checkpoint-dir",
                                      job).out)
                self.assertEqual((rest["digest"], rest["first_step"]), (whole["digest"], 120))

    def test_a_run_that_has_done_its_steps_has_nothing_left_to_do(self):
        """So it succeeds if it is started again, as by a service manager, whenever the last start was killed."""
        self.launch("--workers", "2", "--mode", "sync", "--steps", "60", "--checkpoint-dir", self.folder)
        for program in (("launch_shm", "--job", self.job), ("ps_shm", "--job", self.job),
                        ("worker_shm", "--standalone")):
            code, out, err = run(*program, "--steps", "60", "--checkpoint-dir", self.folder)
            self.assertEqual(code, 0, err)
            self.assertRegex(err, r"\Adone: checkpoint \S+/step-60 is at step 60, and the run ends at --steps 60; to train")
        self.assert_nothing_left()

    def test_a_run_that_has_done_its_steps_has_a_json_document_of_its_result(self):
        for options in (["--ema", "0.9"], ["--model", "logistic", "--data", "zipf:500x2000"]):
            with self.subTest(options):
                folder = self.place / options[0]
                mode = ["--mode", "sync"] if "--ema" in options else []
                whole = self.launch("--workers", "1", *mode, *options, "--steps", "60", "--checkpoint-dir", folder)
                again = self.launch("--workers", "1", *mode, *options, "--steps", "60", "--checkpoint-dir", folder)
                alone = run("worker_shm", "--standalone", *options, "--steps", "60", "--checkpoint-dir", folder, "--json")
                self.assertEqual(alone.code, 0, alone.err)
                for result in again, json.loads(alone.out):
                    self.assertEqual((result["first_step"], result["steps"], result["digest"]), (60, 60, whole["digest"]))
                    for key in "test_loss", "test_accuracy", *(["ema_test_loss"] if "--ema" in options else []):
                        self.assertAlmostEqual(result[key], whole[key])
                self.assertEqual([again["per_worker"], again["seconds"]], [[], 0])


    def test_what_does_not_fit_is_refused_before_anything_starts(self):
        self.launch("--workers", "2", "--mode", "sync", "--steps", "60", "--checkpoint-dir", self.folder)
        launch = ["launch_shm", "--job", self.job, "--checkpoint-dir", self.folder]
        self.assert_fails(1, run(*launch, "--model", "softmax", "--steps", "90"), "belongs to another model",
                          "sm_w is float32 [128, 10] there and float32 [64, 10] here", "it has also hid_b, hid_w")
        self.assert_fails(1, run(*launch, "--steps", "90", "--fresh-start"), "--fresh-start", "is not empty")
        facts = self.folder / "step-60/checkpoint.json"
        facts.write_text(facts.read_text().replace('"version": 1', '"version": 0'))
        self.assert_fails(1, run(*launch, "--steps", "90"), "none is complete", "of format version 0; this build reads version 1")
        self.assert_nothing_left()

    def test_other_optimizers_and_numbers_of_workers_go_on_and_it_is_said(self):
        self.launch("--workers", "2", "--mode", "sync", "--steps", "60", "--optimizer", "momentum", "--checkpoint-dir", self.folder)
        code, out, err = run("launch_shm", "--job", self.job, "--workers", "4", "--steps", "90", "--optimizer", "adam", "--mode",
                             "ssp", "--checkpoint-dir", self.folder, "--verbose")
        self.assertEqual(code, 0, err)
        self.assertIn(f"job {self.job} resumes from checkpoint {self.folder}/step-60, at step 60", err)
        self.assertIn("2 workers shared the data, now 4 do: its order is divided anew", err)
        self.assertIn("does not take its settings from the checkpoint: workers is 4 and was 2, mode is ssp and was sync, lr is 0.001 and was 0.01", err)
        self.assertRegex(err, "the checkpoint has no m, v of variable '.*' and similar ones: they start fresh")
        self.assertRegex(out, r"\d+ steps starting at step 60 in")

    def test_a_damaged_checkpoint_is_passed_over_with_a_word(self):
        self.launch("--workers", "1", "--steps", "40", "--checkpoint-dir", self.folder)
        self.launch("--workers", "1", "--steps", "80", "--checkpoint-dir", self.folder)
        self.assertEqual(self.steps_there(), [40, 80])
        model = self.folder / "step-80/model.safetensors"
        content = bytearray(model.read_bytes())
        content[-5] ^= 1
        model.write_bytes(content)
        self.assert_fails(1, run("inspect_shm", "diff", self.folder / "step-40", self.folder / "step-80"),
                          "the contents of model.safetensors are not what was written")
        code, out, err = run("launch_shm", "--job", self.job, "--workers", "1", "--steps", "100", "--checkpoint-dir", self.folder)
        self.assertEqual(code, 0, err)
        self.assertIn("skipped a checkpoint", err)
        self.assertIn("the contents of model.safetensors are not what was written", err)
        self.assertIn("step-40, at step 40", err)

    def test_the_newest_are_kept_and_the_best(self):
        self.launch("--workers", "1", "--mode", "sync", "--steps", "4000", "--delay", "all:0.2ms", "--checkpoint-dir", self.folder,
                    "--checkpoint-every", "100steps", "--keep-checkpoints", "2", "--keep-best")
        steps = self.steps_there()
        self.assertEqual(steps[-1], 4000)
        self.assertIn(len(steps), (2, 3))
        best = min(self.losses(steps))
        self.launch("--workers", "1", "--mode", "sync", "--steps", "4400", "--lr", "10", "--checkpoint-dir", self.folder,
                    "--checkpoint-every", "100steps", "--keep-checkpoints", "2", "--keep-best")
        # the best checkpoint is kept
        self.assertLessEqual(min(self.losses(self.steps_there())), best)

    def test_sync_mode_keeps_exactly_the_multiples_and_counts_those_that_it_misses(self):
        launch, gate = self.start_gated("--workers", "2", "--checkpoint-dir", self.folder, "--checkpoint-every", "100steps",
                                        "--keep-checkpoints", "100", "--steps", "350", mode="sync")
        # The first one is ordered before the workers may come to it.
        held = lambda: json.loads(run("inspect_shm", "show", "--job", self.job, "--json").out)["snapshot"]["held"]
        support.wait_training(self.job, 2)
        support.wait_until(held, "a snapshot is ordered")
        gate.open()
        code, _, err = support.finish(launch)
        self.assertEqual(code, 0, err)
        multiples = {100, 200, 300}
        kept = set(self.steps_there())
        self.assertLessEqual(kept, multiples | {350})
        self.assertGreater(len(kept), 1)
        skipped = len(multiples - kept)
        self.assertEqual(f"{skipped} of the checkpoints at every 100 steps w" in err, skipped != 0, err)
        self.assertEqual("skipped" in err, skipped != 0, err)

    def test_what_is_missed_is_counted_and_said(self):
        """With an interval of one step some are missed while one is written; each step is kept or counted."""
        for program in (("launch_shm", "--job", self.job, "--workers", "1", "--mode", "sync"), ("worker_shm", "--standalone")):
            with self.subTest(program[0]):
                folder = self.folder / program[0]
                code, _, err = run(*program, "--steps", "300", "--checkpoint-dir", folder, "--checkpoint-every", "1step",
                                   "--keep-checkpoints", "1000")
                self.assertEqual(code, 0, err)
                kept = len(list(folder.glob("step-*")))
                said = re.search(r"(\d+) of the checkpoints at every 1 steps w(as|ere) skipped", err)
                self.assertEqual(kept + (int(said[1]) if said else 0), 300, err)

    def test_a_ps_that_is_asked_to_end_keeps_the_last_state(self):
        launch = self.start("launch_shm", "--job", self.job, "--workers", "2", "--steps", "100000000", "--checkpoint-dir",
                            self.folder)
        support.wait_until(lambda: any(worker["steps"] > 0 for worker in support.workers_of(self.job) or []), "steps")
        launch.terminate()
        self.assertEqual(support.finish(launch).code, 130)
        self.assertEqual(len(self.steps_there()), 1)
        self.assertGreater(self.steps_there()[0], 0)

    def failing_disk(self):
        """Returns the environment of a program that cannot write below the folder, and the file that holds the error
        number."""
        library, said = self.place / "failing_disk.so", self.place / "disk"
        source = pathlib.Path(os.environ["PS_SHM_SOURCE"]) / "tests/process/failing_disk.c"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        # By name: LD_PRELOAD splits paths at spaces, and TMPDIR may contain one.
        libraries = os.pathsep.join(filter(None, [str(self.place), os.environ.get("LD_LIBRARY_PATH")]))
        said.write_text(str(errno.ENOSPC))
        return {"LD_PRELOAD": library.name, "LD_LIBRARY_PATH": libraries, "PS_SHM_TEST_FOLDER": str(self.folder),
                "PS_SHM_TEST_DISK": str(said),
                "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"}, said

    def test_a_last_state_that_cannot_be_written_is_a_failure_that_says_what_is_lost(self):
        environment, said = self.failing_disk()
        arguments = ["--checkpoint-dir", self.folder, "--checkpoint-every", "1h"]

        def train(steps):
            ps = self.start("ps_shm", "--job", self.job, "--workers", "1", "--steps", steps, *arguments, env=environment)
            worker = run("worker_shm", "--job", self.job, "--quiet")
            self.assertEqual(worker.code, 0, worker.err)
            return support.finish(ps)

        for code, out, err in (train("60"), run("worker_shm", "--standalone", "--steps", "60", *arguments, env=environment)):
            self.assertEqual(code, 1, err)
            self.assertRegex(err, "checkpoint of the last state failed: cannot write .*No space left on device; "
                                  "what was trained is lost")
            self.assertNotIn("training continues", err)
            self.assertRegex(out, "finished at step 60|60 steps in", "its result is reported all the same")
        said.unlink()
        self.assertEqual(train("40").code, 0)
        said.write_text(str(errno.ENOSPC))
        code, _, err = train("60")
        self.assertEqual(code, 1, err)
        self.assertRegex(err, "checkpoint of the last state failed: .*; what came after step 40 is lost")
        self.assertEqual(self.steps_there(), [40])

    def test_a_folder_that_cannot_be_written_is_told_before_anything_starts(self):
        unwritable = "/proc"  # also for root; it can be opened and locked
        for option in ("--checkpoint-dir", "--summary-dir"):
            for program in (("launch_shm", "--job", self.job, "--steps", "10"), ("ps_shm", "--job", self.job, "--steps", "10"),
                            ("worker_shm", "--standalone", "--steps", "10"), ("worker_shm", "--job", self.job)):
                if (option, program[1:]) == ("--checkpoint-dir", ("--job", self.job)) and program[0] == "worker_shm":
                    continue  # it keeps none
                with self.subTest(option, program=program):
                    result = run(*program, option, unwritable)
                    self.assert_fails(1, result, program[0], "cannot write to the folder /proc")
                    self.assertEqual(result.out, "")
        self.assert_nothing_left()

    def test_a_launch_whose_last_checkpoint_is_lost_fails_also_if_it_is_interrupted(self):
        for is_interrupted in (False, True):
            with self.subTest(is_interrupted=is_interrupted):
                self.job = support.new_job()
                launch, gate = self.start_gated("--workers", "1", "--checkpoint-dir", self.folder, "--checkpoint-every", "1h")
                support.wait_training(self.job, 1)
                self.folder.rmdir()
                self.folder.write_text("in the way")
                if is_interrupted:
                    launch.send_signal(signal.SIGINT)
                gate.open()
                code, _, err = support.finish(launch)
                self.assertEqual(code, 1, err)
                self.assertIn("checkpoint of the last state failed: ", err)
                self.folder.unlink()
                self.assert_nothing_left()

    def test_a_disk_that_fails_stops_nothing_and_the_next_save_succeeds(self):
        preloaded, said = self.failing_disk()
        ps = self.start("ps_shm", "--job", self.job, "--workers", "1", "--checkpoint-dir", self.folder, "--checkpoint-every",
                        "0.1s", "--linger", "0s", env=preloaded, stderr=subprocess.STDOUT)
        worker = self.start("worker_shm", "--job", self.job, "--delay", "0.2ms", "--quiet")

        def wait_for(*words):
            for line in ps.stdout:
                if all(word in line for word in words):
                    return line
            self.fail(f"the ps never says {words}")

        wait_for("checkpoint failed: cannot write", "No space left on device; training continues")
        self.assertEqual(list(self.folder.iterdir()), [], "what was half written is gone")
        said.write_text(str(errno.EROFS))
        wait_for("checkpoint failed: cannot write", "Read-only file system; training continues")
        said.unlink()
        wait_for("checkpoint", "written in")
        subprocess.run(["rm", "-rf", self.folder])  # the folder may even disappear
        support.wait_until(lambda: self.steps_there(), "the next checkpoint")
        worker.terminate()
        ps.communicate(timeout=support.PATIENCE)
        self.assertEqual(worker.wait(), 130)
        json.loads(run("launch_shm", "--job", support.new_job(), "--workers", "1", "--steps", str(self.steps_there()[-1] + 50),
                       "--checkpoint-dir", self.folder, "--json").out)

    def test_a_stopped_holder_of_a_snapshot_is_named_and_holds_nothing_up_for_long(self):
        ps = self.start("ps_shm", "--job", self.job, "--workers", "1", "--checkpoint-dir", self.folder, "--checkpoint-every",
                        "1h", "--publish", self.job)
        worker = self.start("worker_shm", "--job", self.job, "--delay", "2ms", "--quiet")
        support.wait_training(self.job, 1)
        holder = support.Peer(self, "hold-snapshot", self.job)
        support.stop(holder.process)
        ps.terminate()
        code, _, err = support.finish(ps)
        self.assertEqual(code, 1, err)
        self.assertRegex(err, rf"checkpoint of the last state failed: .*, and process {holder.process.pid} did not give the "
                              r"existing one back within .*; what was trained is lost")
        support.finish(worker)
        holder.process.send_signal(signal.SIGCONT)
        self.assertEqual(holder.end(), 0)

    def test_a_second_signal_gives_up_the_last_checkpoint_and_says_what_is_lost(self):
        environment, said = self.failing_disk()
        said.write_text(str(errno.EBUSY))  # a very slow disk
        ps = self.start("ps_shm", "--job", self.job, "--workers", "1", "--checkpoint-dir", self.folder, "--checkpoint-every",
                        "1h", env=environment)
        worker = self.start("worker_shm", "--job", self.job, "--model", "count", "--count-size", "10000000", "--steps",
                            "1000000000", "--quiet")
        support.wait_training(self.job, 1)
        ps.terminate()
        support.wait_until(lambda: self.folder.is_dir() and any(self.folder.glob(".partial*/*")), "it is being written")
        later = time.monotonic() + 0.5  # an earlier one would count as the same
        support.wait_until(lambda: time.monotonic() > later, "half a second")
        ps.terminate()
        support.wait_until(lambda: not support.has_pending_signal(ps.pid, signal.SIGTERM), "the signal has arrived")
        said.unlink()
        code, _, err = support.finish(ps)
        self.assertEqual(code, 1, err)
        self.assertIn("checkpoint of the last state failed: interrupted; what was trained is lost", err)
        self.assertEqual(list(self.folder.iterdir()), [])
        support.finish(worker)

    def test_a_folder_that_cannot_be_synced_is_a_failure_and_nothing_older_goes(self):
        environment, said = self.failing_disk()
        said.unlink()
        arguments = ["--checkpoint-dir", self.folder, "--checkpoint-every", "1h", "--keep-checkpoints", "1"]
        self.assertEqual(run("worker_shm", "--standalone", "--steps", "40", *arguments, env=environment).code, 0)
        said.write_text(str(errno.EIO))
        code, _, err = run("worker_shm", "--standalone", "--steps", "60", *arguments, env=environment)
        self.assertEqual(code, 1, err)
        self.assertRegex(err, "cannot sync the folder .*: Input/output error; what came after step 40 is lost")
        self.assertEqual([entry.name for entry in self.folder.iterdir()], ["step-40"])

    def test_what_a_dead_process_left_half_written_goes_and_what_is_being_written_stays(self):
        self.folder.mkdir()
        zombie = subprocess.Popen(["true"])  # its process id stays in use until it is waited for
        support.wait_until(lambda: not support.is_running(zombie.pid), "it has ended")
        for pid in (zombie.pid, 1, os.getpid()):
            (self.folder / f".partial-step-9-1-{pid}").mkdir()
            (self.folder / f".partial-old-step-8-1-{pid}").mkdir()
        busy = self.folder / ".partial-step-9-2-999999999"
        busy.mkdir()
        descriptor = os.open(busy, os.O_RDONLY | os.O_DIRECTORY)
        self.addCleanup(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        self.launch("--workers", "1", "--steps", "40", "--checkpoint-dir", self.folder)
        self.assertEqual({entry.name for entry in self.folder.iterdir()}, {busy.name, "step-40"})
        zombie.wait()

    def test_two_jobs_do_not_keep_checkpoints_in_one_folder(self):
        self.start_ps("--workers", "1", "--checkpoint-dir", self.folder)
        self.assert_fails(1, run("ps_shm", "--job", support.new_job(), "--checkpoint-dir", self.folder),
                          "another process writes checkpoints")


if __name__ == "__main__":
    support.main()
