"""Prints what TensorBoard reads from a folder, as JSON: run -> tags with their points. Needs the package
tensorboard."""
import json
import pathlib
import sys

from tensorboard.backend.event_processing import event_accumulator, event_multiplexer

KEEP_ALL = {kind: 0 for kind in (event_accumulator.SCALARS, event_accumulator.HISTOGRAMS, event_accumulator.TENSORS)}
folder = sys.argv[1]
multiplexer = event_multiplexer.EventMultiplexer(size_guidance=KEEP_ALL).AddRunsFromDirectory(folder)
multiplexer.Reload()
runs = {}
for run in multiplexer.Runs():
    events = multiplexer.GetAccumulator(run)
    tags = events.Tags()
    runs[run] = {
        "scalars": {tag: [[e.step, e.value] for e in events.Scalars(tag)] for tag in tags["scalars"]},
        "histograms": {tag: [[e.step, vars(e.histogram_value)] for e in events.Histograms(tag)]
                       for tag in tags["histograms"]},
        "texts": {tag: [e.tensor_proto.string_val[0].decode() for e in events.Tensors(tag)] for tag in tags["tensors"]},
        "files": len(list(pathlib.Path(folder, run).iterdir())),
    }
json.dump(runs, sys.stdout)
