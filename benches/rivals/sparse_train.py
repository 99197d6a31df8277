"""Others train logistic regression on a file of LIBSVM text, pass by pass, until its mean loss is low enough.

    python3 sparse_train.py sklearn|liblinear|vw FILE RATE LOSS PASSES SEED

sklearn: SGDClassifier, plain SGD by one example with a constant rate. vw: Vowpal Wabbit with the steps that it has by
default (adaptive, normalized, invariant), from its own cache file. liblinear: its solver of the dual problem, C = 1.
None of them has a bias. Each has one thread. The clock stands while the file is read or converted, and for the losses.
Prints one JSON object: the version, the number of examples, and of each pass the seconds so far and the loss on the file.
"""

import json
import os
import sys
import tempfile
import time
import warnings

# Before what reads it is imported.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy  # noqa: E402
import sklearn  # noqa: E402
from sklearn.datasets import load_svmlight_file  # noqa: E402
from sklearn.linear_model import LogisticRegression, SGDClassifier  # noqa: E402


def mean_loss(margins, labels):
    return float(numpy.mean(numpy.logaddexp(0, -labels * margins)))


def train_sklearn(features, labels, rate, seed):
    model = SGDClassifier(
        loss="log_loss", penalty=None, learning_rate="constant", eta0=rate, fit_intercept=False, random_state=seed
    )
    seconds = 0.0
    while True:
        begin = time.perf_counter()
        model.partial_fit(features, labels, classes=[-1, 1])
        seconds += time.perf_counter() - begin
        yield seconds, model.decision_function(features)


def train_liblinear(features, labels, _rate, seed):
    """It keeps nothing from one call to the next: each begins anew with one pass more."""
    warnings.simplefilter("ignore")  # that it has not converged
    passes = 0
    while True:
        passes += 1
        model = LogisticRegression(
            solver="liblinear", dual=True, C=1.0, tol=1e-9, fit_intercept=False, max_iter=passes, random_state=seed
        )
        begin = time.perf_counter()
        model.fit(features, labels)
        yield time.perf_counter() - begin, model.decision_function(features)


def train_vw(features, labels, _rate, seed):
    """It keeps nothing from one call to the next, either."""
    from vowpalwabbit import Workspace

    with tempfile.TemporaryDirectory(prefix="vw-") as folder:
        text, cache, model, margins = (f"{folder}/{name}" for name in ("text", "cache", "model", "margins"))
        with open(text, "w") as out:
            for row, label in enumerate(labels):
                begin, end = features.indptr[row : row + 2]
                pairs = zip(features.indices[begin:end], features.data[begin:end])
                out.write(f"{label:g} |" + "".join(f" {index}:{value:g}" for index, value in pairs) + "\n")
        bits = max(18, int(features.shape[1]).bit_length())
        usual = f"--quiet --loss_function logistic --noconstant -b {bits} --random_seed {seed} -d {text}"
        usual += f" --cache_file {cache}"
        Workspace(f"{usual} --passes 2 --holdout_off").finish()  # makes the cache
        passes = 0
        while True:
            passes += 1
            begin = time.perf_counter()
            Workspace(f"{usual} --passes {passes} --holdout_off -f {model}").finish()
            seconds = time.perf_counter() - begin
            Workspace(f"--quiet -t -i {model} -d {text} --cache_file {cache} -r {margins}").finish()
            with open(margins) as lines:
                yield seconds, numpy.array([float(line) for line in lines])


def version_of(learner):
    if learner != "vw":
        return sklearn.__version__
    import vowpalwabbit

    return vowpalwabbit.__version__


def main():
    learner, path, rate, wanted, most, seed = sys.argv[1:]
    features, labels = load_svmlight_file(path)
    features.indptr, features.indices = features.indptr.astype(numpy.int32), features.indices.astype(numpy.int32)
    labels = numpy.where(labels > 0, 1.0, -1.0)
    train = {"sklearn": train_sklearn, "liblinear": train_liblinear, "vw": train_vw}[learner]
    curve = []
    for seconds, margins in train(features, labels, float(rate), int(seed)):
        curve.append({"epoch": len(curve) + 1, "seconds": seconds, "loss": mean_loss(margins, labels)})
        if curve[-1]["loss"] <= float(wanted) or len(curve) == int(most):
            break
    print(json.dumps({"version": version_of(learner), "examples": len(labels), "curve": curve}))


if __name__ == "__main__":
    main()
