"""TensorFlow 1's job of a ps and two workers trains the perceptron of worker_shm (784-500-10, SGD) on the same IDX files.

    python3 tf_train.py async|sync FOLDER STEPS [BATCH] [RATE]

Graphs, sessions and gRPC on loopback, as its tutorials had them; sync is its SyncReplicasOptimizer. STEPS is over both
workers; each process computes with one thread. Prints one JSON object: gradients per second over both workers, and the
loss of the last batch.
"""

import ctypes
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

import numpy

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from idx import read_idx  # noqa: E402

HIDDEN, CLASSES, WORKERS, WARMUP, PATIENCE = 500, 10, 2, 10, 120
PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def perceptron(tf1, images, labels):
    def layer(name, values, size):
        shape = [values.shape[1], size]
        weights = tf1.get_variable(name + "_w", shape, initializer=tf1.random_uniform_initializer(-0.05, 0.05, seed=1))
        return tf1.matmul(values, weights) + tf1.get_variable(name + "_b", [size], initializer=tf1.zeros_initializer())

    logits = layer("out", tf1.nn.relu(layer("hidden", images, HIDDEN)), CLASSES)
    return tf1.reduce_mean(tf1.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def batches(images, labels, size, seed):
    draw = numpy.random.default_rng(seed)
    while True:
        order = draw.permutation(len(images))
        for at in range(0, len(images) - size + 1, size):
            chosen = order[at : at + size]
            yield images[chosen], labels[chosen]


def wait_for(paths, check=lambda: None):
    end = time.monotonic() + PATIENCE
    while not all(path.exists() for path in paths):
        check()
        if time.monotonic() > end:
            sys.exit(f"nobody has made {paths[0].name} in {PATIENCE} s")
        time.sleep(0.001)


def end_with(parent):
    """A task ends with whoever has started it, however that ends: a server has no end of its own."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("whoever has started this task is gone")


def play(role, number, cluster, folder, kind, data, steps, batch, rate):
    import tensorflow

    tf1 = tensorflow.compat.v1
    tf1.disable_eager_execution()
    config = tf1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=2)
    cluster = tf1.train.ClusterSpec(cluster)
    server = tf1.train.Server(cluster, job_name=role, task_index=number, config=config)
    if role == "ps":
        server.join()
    images = read_idx(data, "train-images-idx3-ubyte")
    images = images.reshape(len(images), -1).astype(numpy.float32) / 255
    labels = read_idx(data, "train-labels-idx1-ubyte").astype(numpy.int64)
    with tf1.device(tf1.train.replica_device_setter(worker_device=f"/job:worker/task:{number}", cluster=cluster)):
        fed = tf1.placeholder(tf1.float32, [None, images.shape[1]]), tf1.placeholder(tf1.int64, [None])
        loss = perceptron(tf1, *fed)
        optimizer = tf1.train.GradientDescentOptimizer(rate)
        hooks = []
        if kind == "sync":
            optimizer = tf1.train.SyncReplicasOptimizer(
                optimizer, replicas_to_aggregate=WORKERS, total_num_replicas=WORKERS
            )
        train = optimizer.minimize(loss, global_step=tf1.train.get_or_create_global_step())
        if kind == "sync":
            hooks.append(optimizer.make_session_run_hook(number == 0))
    source = batches(images, labels, batch, number)
    if number != 0:
        wait_for([folder / "chief"])  # else it would look every 30 seconds only whether the chief has initialised
    with tf1.train.MonitoredTrainingSession(server.target, number == 0, hooks=hooks, config=config) as session:
        if number == 0:
            (folder / "chief").touch()
        # Both go on until both are warm. A sync step takes two gradients, and both may be of the faster worker: the
        # slower one would then wait for another.
        ready = [folder / f"ready-{other}" for other in range(WORKERS)]
        warm = 0
        while not all(path.exists() for path in ready):
            session.run([train, loss], dict(zip(fed, next(source))))
            warm += 1
            if warm == WARMUP:
                ready[number].touch()
        begin = time.time()
        for _ in range(steps // WORKERS):
            _, last = session.run([train, loss], dict(zip(fed, next(source))))
        partial = folder / f"partial-{number}"
        partial.write_text(json.dumps([begin, time.time(), float(last)]))
        partial.rename(folder / f"found-{number}")
        while True:  # a sync step of the other worker would wait for ever for one that has ended
            session.run(train, dict(zip(fed, next(source))))


def main():
    kind, data, steps = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3])
    batch = int(sys.argv[4]) if len(sys.argv) > 4 else 100
    rate = float(sys.argv[5]) if len(sys.argv) > 5 else 0.1
    if len(sys.argv) > 6:
        role, number, cluster, folder, parent = sys.argv[6:]
        end_with(int(parent))
        return play(role, int(number), json.loads(cluster), pathlib.Path(folder), kind, data, steps, batch, rate)
    ports = free_ports(1 + WORKERS)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    cluster = json.dumps({"ps": addresses[:1], "worker": addresses[1:]})
    with tempfile.TemporaryDirectory() as folder, open(os.path.join(folder, "errors"), "w+") as errors:
        command = [sys.executable, __file__, kind, data, steps, batch, rate]
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
        tasks = [("ps", 0), *(("worker", number) for number in range(WORKERS))]
        started = [
            subprocess.Popen(
                [str(word) for word in (*command, role, number, cluster, folder, os.getpid())],
                env=environment, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors,
            )
            for role, number in tasks
        ]
        files = [pathlib.Path(folder) / f"found-{number}" for number in range(WORKERS)]

        def check():
            if any(process.poll() is not None for process in started):
                errors.seek(0)
                sys.exit(f"a task has ended: {(errors.read().splitlines() or ['without a word'])[-1]}")

        try:
            wait_for(files, check)
            found = [json.loads(path.read_text()) for path in files]
        finally:
            for process in started:
                process.kill()
                process.wait()
    seconds = max(end for _, end, _ in found) - min(begin for begin, _, _ in found)
    done = steps // WORKERS * WORKERS
    print(json.dumps({"gradients/s": done / seconds, "seconds": seconds, "loss": max(last for *_, last in found)}))


if __name__ == "__main__":
    main()
