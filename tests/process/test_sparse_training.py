"""Sparse models: three workers get as far as a single process, on synthetic data and on files."""
import json
import pathlib
import random
import tempfile

import support
from support import ProcessTest, run


def libsvm(path, seed, examples=400, features=50):
    """Writes examples with labels 0 and 1 by the sign of planted weights, which are the same for every seed."""
    weights = random.Random(1).choices((-1, 1), k=features)
    drawn = random.Random(seed)
    with open(path, "w") as out:
        for _ in range(examples):
            ids = sorted(drawn.sample(range(features), 7))
            label = int(sum(weights[i] for i in ids) > 0)
            out.write(f"{label} " + " ".join(f"{i + 1}:1" for i in ids) + "\n")


class SparseTraining(ProcessTest):
    def alone(self, *options):
        code, out, err = run("worker_shm", "--standalone", "--quiet", *options, "--json")
        self.assertEqual(code, 0, err)
        return json.loads(out)

    def compare(self, metric, tolerance, *options):
        """Requires that the metric of three workers is within the tolerance of that of one process; returns both
        reports."""
        alone, together = self.alone(*options), self.launch(*options)
        self.assertAlmostEqual(together[metric], alone[metric], delta=tolerance)
        self.assertEqual((together["workers"], together["layout"]), (3, "inplace"))
        epochs = float(dict(zip(options, options[1:])).get("--epochs", 10))
        self.assertAlmostEqual(alone["epochs"], epochs, delta=0.2)  # whole batches only
        # Two workers may be in the middle of a step when the third one completes the last one.
        self.assertIn(together["steps"], range(alone["steps"], alone["steps"] + 3))
        return alone, together

    def test_one_worker_computes_the_bits_of_one_process(self):
        for model in ("logistic", "svm", "mf", "fm"):
            with self.subTest(model):
                options = ("--model", model, "--combine", "3", "--l2", "1e-4", "--lr-schedule", "epoch:0.9")
                one = self.launch("--workers", "1", *options)
                self.assertEqual(one["digest"], self.alone(*options)["digest"])

    def test_logistic_regression_needs_no_option(self):
        alone, together = self.compare("test_accuracy", 0.03, "--model", "logistic")
        for report in (alone, together):
            self.assertGreater(report["test_accuracy"], 0.75)  # the share of one class: about a half
            self.assertGreater(report["test_auc"], 0.8)
            self.assertLess(report["test_log_loss"], 0.55)
            self.assertNotIn("test_rmse", report)

    def test_a_support_vector_machine_needs_no_option(self):
        _, together = self.compare("test_accuracy", 0.03, "--model", "svm")
        self.assertGreater(together["test_accuracy"], 0.75)
        self.assertNotIn("test_log_loss", together)

    def test_factors_of_ratings_are_learnt(self):
        for model in ("mf", "fm"):
            with self.subTest(model):
                alone, together = self.compare("test_rmse", 0.03, "--model", model)
                # A model with biases alone cannot learn the planted factors.
                biases = self.alone("--model", model, "--factors", "0")
                for report in (alone, together):
                    self.assertLess(report["test_rmse"], 0.9 * biases["test_rmse"])
                    self.assertNotIn("test_accuracy", report)

    def test_racy_adds_and_bounded_staleness_come_as_far(self):
        exact = self.alone("--model", "logistic")
        for options in (("--adds", "racy"), ("--mode", "ssp", "--staleness", "2")):
            with self.subTest(options):
                together = self.launch("--model", "logistic", *options)
                self.assertAlmostEqual(together["test_accuracy"], exact["test_accuracy"], delta=0.03)

    def test_combined_examples_come_as_far(self):
        alone, together = self.compare("test_accuracy", 0.03, "--model", "logistic", "--combine", "20")
        self.assertGreater(alone["test_accuracy"], 0.75)
        self.assertGreater(together["test_accuracy"], 0.75)

    def test_a_file_is_trained_on_and_another_one_tested_with(self):
        with tempfile.TemporaryDirectory() as folder:
            train, test = pathlib.Path(folder) / "train", pathlib.Path(folder) / "test"
            libsvm(train, 2)
            libsvm(test, 3)
            options = ("--model", "logistic", "--data", train, "--test-data", test, "--epochs", "60")
            _, together = self.compare("test_accuracy", 0.03, *options)
            self.assertGreater(together["test_accuracy"], 0.9)
            on_itself = self.alone("--model", "logistic", "--data", train, "--test-share", "0")
            self.assertGreater(on_itself["train_accuracy"], 0.95)
            self.assertNotIn("test_accuracy", on_itself)

    def test_ratings_are_tested_with_another_file_by_their_names(self):
        drawn = random.Random(4)
        tastes = {(kind, i): drawn.gauss(0, 1) for kind in "ui" for i in range(40)}
        with tempfile.TemporaryDirectory() as folder:
            train, test = pathlib.Path(folder) / "u1.base", pathlib.Path(folder) / "u1.test"
            for path, count in ((train, 3000), (test, 500)):
                pairs = [(drawn.randrange(40), drawn.randrange(40)) for _ in range(count)]
                path.write_text("".join(f"u{u}\ti{i}\t{3 + tastes['u', u] + tastes['i', i]}\t0\n" for u, i in pairs))
            for model in ("mf", "fm"):
                options = ("--model", model, "--factors", "0", "--data", train, "--epochs", "20", "--lr", "0.3")
                with self.subTest(model):
                    for share in ((), ("--share-data", "--cache", pathlib.Path(folder) / "cache")):
                        together = self.launch(*options, "--test-data", test, *share)
                        self.assertLess(together["test_rmse"], 0.2)  # predicting the mean gives 1.4
                    # No id of these ratings was seen in training, so the model predicts the mean.
                    strangers = pathlib.Path(folder) / "strangers"
                    strangers.write_text("".join(f"a{i}\tb{i}\t{i % 2}\n" for i in range(100)))
                    alone = self.alone(*options, "--test-data", strangers)
                    values = [float(line.split("\t")[2]) for line in train.read_text().splitlines()]
                    mean = sum(values) / len(values)
                    self.assertAlmostEqual(alone["test_rmse"], ((mean ** 2 + (mean - 1) ** 2) / 2) ** 0.5, places=4)

    def test_workers_share_one_copy_of_the_data(self):
        options = ("--model", "logistic", "--workers", "1")
        self.assertEqual(self.launch(*options, "--share-data")["digest"], self.launch(*options)["digest"])
        self.assertGreater(self.launch("--model", "logistic", "--share-data")["test_accuracy"], 0.75)

    def test_the_curve_shows_loss_and_metric_against_epochs(self):
        result = self.launch("--model", "logistic", "--curve", "5", "--epochs", "200")
        curve = result["curve"]
        self.assertGreaterEqual(len(curve), 2)
        self.assertEqual(curve[-1]["accuracy"], result["test_accuracy"])
        self.assertEqual(curve[-1]["auc"], result["test_auc"])
        self.assertEqual(curve[-1]["epoch"], result["epochs"])
        self.assertEqual([point["epoch"] for point in curve], sorted(point["epoch"] for point in curve))

    def test_epochs_make_steps_of_dense_models_too(self):
        result = self.launch("--model", "softmax", "--epochs", "2", "--workers", "1")
        self.assertEqual(result["steps"], 2 * 45)  # 1437 digits in batches of 32
        result = self.launch("--model", "softmax", "--epochs", "2", "--mode", "sync")
        self.assertEqual(result["steps"], 2 * 15)  # a step takes three batches

    def test_rows_of_bfloat16_come_as_far_in_half_the_memory(self):
        for model, optimizer in (("fm", "rowwise_adagrad"), ("mf", "adagrad")):
            for keyed in (), ("--keyed",):
                with self.subTest(model, keyed=keyed):
                    more = "--model", model, *keyed, "--optimizer", optimizer, "--factors", "31"
                    full, half = self.launch(*more), self.launch(*more, "--dtype", "bfloat16")
                    self.assertAlmostEqual(half["test_rmse"], full["test_rmse"], delta=0.08)
                    if keyed:
                        self.assertEqual(half["table"]["rows"], full["table"]["rows"])

    def test_raw_keys_in_a_table_come_as_far_as_ids(self):
        rows = {}
        for model in ("logistic", "svm", "mf", "fm"):
            # Factors begin with other values, and where they get to differs by 0.03 from seed to seed of either.
            metric, tolerance = ("test_accuracy", 0.03) if model in ("logistic", "svm") else ("test_rmse", 0.08)
            with self.subTest(model):
                dense, keyed = self.launch("--model", model), self.launch("--model", model, "--keyed")
                self.assertAlmostEqual(keyed[metric], dense[metric], delta=tolerance)
                self.assertEqual(keyed["layout"], "inplace")
                self.assertNotIn("digest", keyed)
                self.assertEqual(keyed["table"]["evicted"], 0)
                rows[model] = keyed["table"]["rows"]
        self.assertEqual(rows["logistic"], rows["svm"])  # of the features that occur
        self.assertLessEqual(rows["logistic"], 1000)
        self.assertGreater(rows["logistic"], 900)
        self.assertEqual(rows["mf"], 500)  # of 300 users and 200 items

    def test_a_table_stays_within_its_rows_and_admits_what_returns(self):
        options = ("--model", "logistic", "--keyed", "--data", "zipf:1000000000x3000x20x1", "--epochs", "2")
        free = self.launch(*options)["table"]
        full = self.launch(*options, "--max-rows", "2000")
        self.assertLessEqual(full["table"]["rows"], 2000)
        self.assertGreater(full["table"]["evicted"], 1000)
        self.assertGreater(full["test_auc"], 0.58)  # 0.611 on average, with a deviation of 0.005
        refusing = self.launch(*options, "--max-rows", "2000", "--evict", "none")["table"]
        self.assertEqual((refusing["rows"], refusing["evicted"]), (2000, 0))
        self.assertGreater(refusing["refused"], 0)
        admitted = self.launch(*options, "--admit-after", "3")["table"]
        self.assertLess(admitted["rows"], free["rows"] / 2)
        self.assertGreater(admitted["unadmitted"], free["rows"])
        self.assertEqual(free["expired"], 0)
        old = self.launch(*options, "--evict", "age", "--ttl", "100ms", "--delay", "all:60ms", "--workers", "1")["table"]
        self.assertGreater(old["expired"], 0)  # it takes 3 s at least
        self.assertEqual(old["expired"], old["evicted"])

    def test_a_keyed_job_goes_on_from_its_checkpoint(self):
        with tempfile.TemporaryDirectory() as folder:
            options = ("--model", "logistic", "--keyed", "--checkpoint-dir", folder, "--data", "zipf:1000000x5000x10")
            first = self.launch(*options, "--steps", "200")
            second = self.launch(*options, "--steps", "210")
            self.assertEqual(second["first_step"], first["steps"])
            self.assertGreaterEqual(second["table"]["rows"], first["table"]["rows"])
            self.assertGreater(second["test_accuracy"], first["test_accuracy"] - 0.05)
            again = self.launch(*options, "--steps", "210")  # nothing is left to do
            self.assertEqual(again["steps"], second["steps"])

    def test_files_are_trained_on_by_their_own_numbers(self):
        with tempfile.TemporaryDirectory() as folder:
            train, test = pathlib.Path(folder) / "train", pathlib.Path(folder) / "test"
            for path, seed in ((train, 2), (test, 3)):
                libsvm(path, seed)
                # Numbers of 64 bits, as a hash would give them, in no order.
                lines = []
                for line in path.read_text().splitlines():
                    label, *features = line.split()
                    keys = [f"{int(one.split(':')[0]) * 0x9E3779B97F4A7C15 % 2 ** 64}:1" for one in features]
                    lines.append(" ".join([label, *keys]))
                path.write_text("\n".join(lines) + "\n")
            options = ("--model", "logistic", "--data", train, "--test-data", test, "--keyed", "--epochs", "60")
            for more in ((), ("--cache", pathlib.Path(folder) / "cache", "--share-data"), ("--bias", "--combine", "7")):
                with self.subTest(more):
                    together = self.launch(*options, *more)
                    self.assertGreater(together["test_accuracy"], 0.9)
                    self.assertEqual(together["table"]["rows"], 51 if "--bias" in more else 50)
            code, _, err = run("launch_shm", "--model", "logistic", "--data", train)
            self.assertNotEqual(code, 0)
            self.assertIn("hash the features", err)

    def test_the_last_worker_of_a_keyed_job_by_hand_tells_its_metrics(self):
        ps = self.start_ps("--steps", "200", "--optimizer", "adagrad")
        code, out, err = run("worker_shm", "--job", self.job, "--model", "fm", "--keyed", "--data", "zipf:100x1000x5")
        self.assertEqual(code, 0, err)
        self.assertIn("test accuracy", out)
        self.assertEqual(support.finish(ps)[0], 0)

    def test_a_worker_that_takes_the_rows_by_ids_and_one_that_takes_them_by_keys_do_not_train_together(self):
        options = ("--model", "logistic", "--data", "zipf:100x1000x5")
        for first, second, words in ((["--keyed"], [], "with --keyed"), ([], ["--keyed"], "without --keyed")):
            with self.subTest(second):
                launch, gate = self.start_gated("--workers", "1", *options, *first)
                support.wait_training(self.job, 1)
                self.assert_fails(1, run("worker_shm", "--job", self.job, *options, *second), words)
                left = [table["name"] for kind in ("variables", "tables")
                        for table in json.loads(run("inspect_shm", "vars", "--job", self.job, "--json").out)[kind]]
                self.assertEqual(left, ["w"])  # the one that was refused has declared nothing
                gate.open()
                self.assertEqual(support.finish(launch)[0], 0)

    def test_a_chief_by_hand_tells_its_metrics(self):
        ps = self.start_ps("--steps", "200", "--optimizer", "adagrad")
        code, out, err = run("worker_shm", "--job", self.job, "--model", "fm", "--data", "zipf:100x1000x5")
        self.assertEqual(code, 0, err)
        self.assertIn("test accuracy", out)
        self.assertIn("test auc", out)
        self.assertEqual(support.finish(ps)[0], 0)


if __name__ == "__main__":
    support.main()
