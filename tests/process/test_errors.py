"""Every user error gives exit code 1 or 2 and one line that says what to do."""
import os
import pathlib
import signal
import tempfile

import support
from support import ProcessTest, run


class Usage(ProcessTest):
    def test_an_unknown_option_is_named(self):
        for program in ("ps_shm", "worker_shm", "launch_shm"):
            self.assert_fails(2, run(program, "--no-such-option"), program, "no-such-option")
        self.assert_fails(2, run("inspect_shm", "ls", "--no-such-option"), "inspect_shm", "no-such-option")

    def test_a_quorum_of_more_workers_than_there_will_be_is_refused(self):
        sync = ("launch_shm", "--job", self.job, "--mode", "sync", "--model", "count", "--steps", "5")
        self.assert_fails(2, run(*sync, "--workers", "2..3", "--quorum", "4"), "--quorum 4", "--workers 2..3")
        self.assertEqual(run(*sync, "--workers", "2..3", "--quorum", "3")[0], 0)

    def test_help_is_no_error(self):
        for program in ("ps_shm", "worker_shm", "launch_shm", "inspect_shm"):
            self.assertEqual(run(program, "--help")[0], 0)


class Jobs(ProcessTest):
    def test_a_worker_of_an_unknown_job_gives_up_after_its_time(self):
        code, _, err = run("worker_shm", "--job", self.job, "--wait-job", "1.2")
        self.assertEqual(code, 1)
        self.assertIn("start its ps_shm", err.strip().splitlines()[-1])

    def test_inspecting_an_unknown_job_fails(self):
        self.assert_fails(1, run("inspect_shm", "show", "--job", self.job), self.job)

    def test_a_second_ps_for_a_job_is_refused(self):
        first = self.start_ps()
        self.assert_fails(1, run("ps_shm", "--job", self.job), "already has a ps", self.job)
        first.send_signal(signal.SIGINT)
        self.assertEqual(support.finish(first)[0], 130)

    def test_an_unknown_variable_is_named_with_those_there_are(self):
        ps = self.start_ps("--workers", "2")
        self.assertEqual(run("worker_shm", "--job", self.job, "--model", "count", "--steps", "1")[0], 0)
        self.assert_fails(1, run("inspect_shm", "dump", "--job", self.job, "no_such"), "no_such", "var")
        ps.send_signal(signal.SIGTERM)
        support.finish(ps)

    def test_a_variable_of_another_shape_is_refused(self):
        ps = self.start_ps("--workers", "2")
        self.assertEqual(run("worker_shm", "--job", self.job, "--model", "count", "--steps", "1", "--count-size", "5")[0], 0)
        self.assert_fails(1, run("worker_shm", "--job", self.job, "--model", "count", "--steps", "1", "--count-size", "6"),
                          "shape", "[5]", "[6]")
        ps.send_signal(signal.SIGTERM)
        support.finish(ps)

    def test_settings_that_the_library_names_are_shown_as_options(self):
        ps = self.start_ps("--max-workers", "2", "--threads", "2")
        self.assert_fails(1, run("worker_shm", "--job", self.job, "--rank", "2"), "ranks 0 to 1", "more --max-workers")
        self.assert_fails(1, run("worker_shm", "--job", self.job, "--threads", "3"), "with --threads 3")
        self.assert_fails(1, run("inspect_shm", "set", "--job", self.job, "workers=2"), "launch_shm --workers LO..HI")
        ps.send_signal(signal.SIGTERM)
        support.finish(ps)

    def test_a_taken_rank_is_refused(self):
        ps = self.start_ps("--workers", "2")
        worker = self.start("worker_shm", "--job", self.job, "--rank", "0", "--model", "count", "--steps", "1000",
                            "--count-interval", "1s")
        support.wait_until(lambda: support.workers_of(self.job), "worker 0 has joined")
        self.assert_fails(1, run("worker_shm", "--job", self.job, "--rank", "0", "--model", "count"), "rank 0", "taken")
        worker.send_signal(signal.SIGINT)
        self.assertEqual(support.finish(worker)[0], 130)
        ps.send_signal(signal.SIGTERM)
        support.finish(ps)

    def test_a_segment_of_another_version_is_refused(self):
        ps = self.start_ps()
        path = support.SHM / f"ps_shm.{self.job}"
        with open(path, "r+b") as segment:
            segment.seek(8)  # HeaderShm::layout_version
            segment.write((99).to_bytes(4, "little"))
        self.assert_fails(1, run("worker_shm", "--job", self.job, "--wait-job", "5"), "version")
        with open(path, "r+b") as segment:
            segment.seek(8)
            segment.write((1).to_bytes(4, "little"))
        ps.send_signal(signal.SIGTERM)
        support.finish(ps)

    def test_a_job_of_another_user_is_refused(self):
        if why := support.why_not_as(65534, support.TOOLS / "worker_shm"):
            self.skipTest(why)
        ps = self.start_ps()
        result = run("worker_shm", "--job", self.job, "--wait-job", "5", user=65534, group=65534, extra_groups=[])
        self.assert_fails(1, result, "permission")
        ps.send_signal(signal.SIGTERM)
        support.finish(ps)

    def test_a_variable_larger_than_dev_shm_is_refused_and_the_job_unharmed(self):
        status = os.statvfs("/dev/shm")
        elements = 2 * status.f_blocks * status.f_frsize // 4
        ps = self.start_ps("--workers", "2")
        result = run("worker_shm", "--job", self.job, "--model", "count", "--steps", "1", "--count-size", str(elements))
        self.assert_fails(1, result, "/dev/shm", "MiB")
        self.assertEqual(run("worker_shm", "--job", self.job, "--model", "count", "--steps", "1")[0], 0)
        ps.send_signal(signal.SIGTERM)
        support.finish(ps)


class Data(ProcessTest):
    def test_data_that_does_not_suit_a_sparse_model_is_refused_with_what_does(self):
        with tempfile.TemporaryDirectory() as folder:
            numbers = pathlib.Path(folder) / "numbers"
            numbers.write_text("1 1:1\n2 1:1\n3 1:1\n")
            ratings = pathlib.Path(folder) / "ratings"
            ratings.write_text("1::2::3\n2::2::4\n")
            ones, twos, zeros = (pathlib.Path(folder) / name for name in ("ones", "twos", "zeros"))
            ones.write_text("1 1:1\n1 2:1\n")
            twos.write_text("1 1:1\n2 2:1\n" * 20)
            zeros.write_text("0 1:1\n1 2:1\n")
            for words, options in ((("two-class model",), ("--model", "svm", "--data", numbers)),
                                   (("all examples of the data have the label 1",), ("--model", "svm", "--data", ones)),
                                   ((f"{zeros}: its labels are 0 and 1, but those of the training data {twos} are 1 and 2",),
                                    ("--model", "logistic", "--data", twos, "--test-data", zeros)),
                                   ((f"{numbers}: its labels are 1 to 3, but those of the training data {twos} are 1 and 2",),
                                    ("--model", "fm", "--data", twos, "--test-data", numbers)),
                                   (("mf or fm",), ("--model", "logistic", "--data", ratings)),
                                   (("logistic, svm or fm",), ("--model", "mf", "--data", numbers)),
                                   (("numbers:1:6: the rating is missing",),
                                    ("--model", "mf", "--data", ratings, "--test-data", numbers)),
                                   (("synthetic users and items", "--test-share"),
                                    ("--model", "mf", "--test-data", ratings)),
                                   (("/no/such/file",), ("--model", "svm", "--data", "/no/such/file"))):
                with self.subTest(options):
                    self.assert_fails(1, run("launch_shm", "--job", self.job, *options), *words)
                    self.assert_fails(1, run("worker_shm", "--standalone", *options), *words)
            result = run("worker_shm", "--standalone", "--model", "svm", "--data", twos, "--test-data", ones)
            self.assertEqual(result.code, 0, result.err)  # of the same two labels, one

    def test_a_job_in_sync_mode_refuses_a_worker_with_a_sparse_model(self):
        ps = self.start_ps("--mode", "sync", "--steps", "5")
        self.assert_fails(1, run("worker_shm", "--job", self.job, "--model", "logistic"), "sync", "--mode async or ssp")
        ps.send_signal(signal.SIGTERM)
        support.finish(ps)

    def test_a_missing_folder_is_named(self):
        self.assert_fails(1, run("launch_shm", "--job", self.job, "--data", "/no/such/folder"), "/no/such/folder")

    def test_a_file_that_is_cut_short_is_named_with_its_offset(self):
        with tempfile.TemporaryDirectory() as folder:
            source = support.SOURCE / "tools" / "data"
            names = {"digits-train-images.idx3-ubyte": "train-images-idx3-ubyte",
                     "digits-train-labels.idx1-ubyte": "train-labels-idx1-ubyte",
                     "digits-test-images.idx3-ubyte": "t10k-images-idx3-ubyte",
                     "digits-test-labels.idx1-ubyte": "t10k-labels-idx1-ubyte"}
            for old, new in names.items():
                (pathlib.Path(folder) / new).write_bytes((source / old).read_bytes())
            cut = pathlib.Path(folder) / "train-images-idx3-ubyte"
            cut.write_bytes(cut.read_bytes()[:1000])
            self.assert_fails(1, run("launch_shm", "--job", self.job, "--data", folder), str(cut), "byte 1000")


if __name__ == "__main__":
    support.main()
