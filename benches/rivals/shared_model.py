"""What Python programs use to give a model to other processes of the machine, written and read as a whole.

    python3 shared_model.py ray BYTES SECONDS    Ray's object store: put() a new model, get() it in another process
    python3 shared_model.py torch BYTES SECONDS  PyTorch: a tensor in shared memory, and a lock around it

Prints one JSON object: GB/s at which one process makes models readable, alone; and the microseconds that a reader takes
to get the newest one, without a copy from Ray, with one from PyTorch.
"""
import json
import statistics
import sys
import time


def rate_of(write, size, wanted):
    """GB/s of `write`, from medians of single calls; the first ones touch the memory."""
    for _ in range(3):
        write()
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < wanted or len(times) < 5:
        start = time.perf_counter()
        write()
        times.append(time.perf_counter() - start)
    return size / statistics.median(times) * 1e-9


def microseconds_of(read, wanted):
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < wanted or len(times) < 5:
        start = time.perf_counter()
        read()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def with_ray(size, wanted):
    import numpy
    import ray

    ray.init(num_cpus=2, object_store_memory=max(8 * size, 128 << 20), include_dashboard=False, logging_level="ERROR")
    model = numpy.ones(size, dtype=numpy.uint8)
    newest = []

    def put():
        newest[:] = [ray.put(model)]  # the one before is free to go

    @ray.remote
    def get(references, seconds):
        return microseconds_of(lambda: ray.get(references[0]), seconds)

    rate = rate_of(put, size, wanted)
    return rate, ray.get(get.remote([newest[0]], wanted))


def read_torch(shared, lock, wanted, found):
    import torch

    torch.set_num_threads(1)
    out = torch.empty_like(shared)

    def read():
        with lock:
            out.copy_(shared)

    found.put(microseconds_of(read, wanted))


def with_torch(size, wanted):
    import torch
    import torch.multiprocessing as multiprocessing

    torch.set_num_threads(1)
    context = multiprocessing.get_context("fork")
    model, shared = torch.ones(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8).share_memory_()
    lock, found = context.Lock(), context.Queue()

    def write():
        with lock:
            shared.copy_(model)

    rate = rate_of(write, size, wanted)
    reader = context.Process(target=read_torch, args=(shared, lock, wanted, found), daemon=True)
    reader.start()
    microseconds = found.get(timeout=60 + 10 * wanted)
    reader.join(30)
    return rate, microseconds


def main():
    kind, size, wanted = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    rate, microseconds = {"ray": with_ray, "torch": with_torch}[kind](size, wanted)
    print(json.dumps({"GB/s": rate, "read_us": microseconds}))


if __name__ == "__main__":
    main()
