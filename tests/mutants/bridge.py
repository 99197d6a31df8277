"""Bridges between boxes: their state and their passes over a model. What the fields mean: tests/mutants/run.py."""

MUTANTS = {
    "bridge_steps_in_place": {
        "breaks": "The outer step computes a part where it stands, so that after a death it is computed twice.",
        "rule": "bridge.S6",
        "tests": ['interleavings "bridge: a text*"'],
        "file": "src/shm/segment/bridge_state.hpp",
        "changes": [
            ("        next(part * kBridgePart, scratch.anchor, scratch.momentum);\n",
             "        next(part * kBridgePart, from.anchor, from.momentum);\n        copy(scratch, from);\n"),
        ],
    },
    "bridge_text_over_the_newest": {
        "breaks": "A text is written over the newest one.",
        "rule": "bridge.S1",
        "tests": ['interleavings "bridge: a text*"'],
        "file": "src/shm/segment/bridge_state.cpp",
        "changes": [
            ("  record.writes.store_release(next);  // bridge.S1\n",
             "  record.writes.store_release(next);  // bridge.S1\n  record.writes.store_release(next + 1);\n"),
        ],
    },
    "bridge_state_of_another_job": {
        "breaks": "A bridge takes the state that an earlier job of the name has left.",
        "rule": "bridge.S1",
        "tests": ['interleavings "bridge: a state has one owner*"'],
        "file": "src/shm/segment/bridge_state.cpp",
        "changes": [
            ("found.is_of(SegmentKind::kBridge, 0, job, instance);\n", "found.is_of(SegmentKind::kBridge, 0, job, instance) || instance != 0;\n"),
        ],
    },
    "bridge_state_has_two_owners": {
        "breaks": "A bridge takes the state of a living one.",
        "rule": "bridge.S1",
        "tests": ['interleavings "bridge: a state has one owner*"'],
        "file": "src/shm/segment/bridge_state.cpp",
        "changes": [
            ("    if (!TaskLocks(found.descriptor()).try_take(kBridgeByte))\n      throw",
             "    if (!TaskLocks(found.descriptor()).try_take(kBridgeByte) && job.empty())\n      throw"),
        ],
    },
    "bridge_mean_over_all_boxes": {
        "breaks": "Elements of sparse blocks are averaged over boxes that have not changed them.",
        "rule": "bridge.R3",
        "tests": ['bridge_passes "bridge passes: a sum*"'],
        "file": "src/bridge/passes.cpp",
        "changes": [("what[i] != 0.0F ? weight : 0.0F;", "weight;")],
    },
    "bridge_residual_is_lost": {
        "breaks": "What the encoding of a sum loses is not added to the next one.",
        "rule": "bridge.R3",
        "tests": ['bridge_passes "bridge passes: a sum*"'],
        "file": "src/bridge/passes.cpp",
        "changes": [("    if (!residual.empty()) add_all(", "    if (residual.size() == 1) add_all(")],
    },
    "bridge_nesterov_is_momentum": {
        "breaks": "The outer rule nesterov does not look ahead.",
        "rule": "bridge.S3",
        "tests": ['bridge_passes "bridge passes: the outer rules*"'],
        "file": "src/bridge/passes.cpp",
        "changes": [("rate * (factor * momentum[i] - mean[i]);", "rate * momentum[i];")],
    },
    "bridge_int8_truncates": {
        "breaks": "The wire format int8 rounds towards zero.",
        "rule": "bridge.R1",
        "tests": ['bridge_passes "bridge passes: a cut*"'],
        "file": "src/bridge/passes.cpp",
        "changes": [("scaled + (scaled < 0.0F ? -0.5F : 0.5F)", "scaled")],
    },
    "bridge_base_is_the_snapshot": {
        "breaks": "What the wire format loses is not kept in the job.",
        "rule": "bridge.R1",
        "tests": ['bridge_passes "bridge passes: a cut*"'],
        "file": "src/bridge/passes.cpp",
        "changes": [("from.data() + begin, decoded.data());", "from.data() + begin, difference.data());")],
    },
}
