"""Publishers and subscribers: how they begin, wait and end. What the fields mean: tests/mutants/run.py."""

MUTANTS = {
    "tensor_of_any_name": {
        "breaks": "The name of a tensor may have any characters.",
        "rule": "publication",
        "tests": ['publishers "publisher: invalid publications*"'],
        "file": "src/publish/bundle_spec.cpp",
        "changes": [
            ("  if (tensor.name.empty() || tensor.name.size() > 127 || tensor.name.find_first_not_of(kAllowed) != std::string::npos)",
             "  if (tensor.name.empty() || tensor.name.size() > 127)"),
        ],
    },
    "tensor_of_any_size": {
        "breaks": "The size of a tensor may overflow.",
        "rule": "publication",
        "tests": ['publishers "publisher: invalid publications*"'],
        "file": "src/publish/bundle_spec.cpp",
        "changes": [
            ("    if (extent > kMaxElements / product)",
             "    if (extent > kMaxElements)"),
        ],
    },
    "publisher_byte_before_end": {
        "breaks": "A publisher gives its byte back before it says that it has ended the publication.",
        "rule": "publication.P10",
        "tests": ['publishers "publisher: it says that it has ended*"'],
        "file": "src/publish/publisher.cpp",
        "changes": [
            ("  bundle.newest().ended.store_release(1);",
             "  bundle.locks().release(shm::kPublisherByte);\n  bundle.newest().ended.store_release(1);"),
        ],
    },
    "publisher_child_ends": {
        "breaks": "A forked child ends its parent's publication.",
        "rule": "locks.L2",
        "tests": ['forked_handles "fork: every call of a parent\'s publisher*"'],
        "file": "src/publish/publisher.cpp",
        "changes": [
            ("  if (!impl_ || impl_->bundle.is_inherited()) return;",
             "  if (!impl_) return;"),
        ],
    },
    "publisher_first_in_part": {
        "breaks": "The first generation may lack tensors.",
        "rule": "publication.P3",
        "tests": ['publication "publication: invalid contents*"'],
        "file": "src/publish/publisher.cpp",
        "changes": [
            ("  if (generation() == 0 && changed.size() != spec.tensors.size())",
             "  if (generation() != 0 && changed.size() > spec.tensors.size())"),
        ],
    },
    "publisher_forgets_parts": {
        "breaks": "A generation may lack a part of a tensor.",
        "rule": "publication",
        "tests": ['publication "publication: a generation is refused while a part*"'],
        "file": "src/publish/publisher.cpp",
        "changes": [
            ("  impl.written.require_whole(fmt::format(\"publication '{}'\", impl.bundle.spec().name));\n", ""),
        ],
    },
    "publisher_gives_up": {
        "breaks": "A publisher that shall wait for a lease to be returned does not.",
        "rule": "publication.P3",
        "tests": ['publication "publication: a publisher may wait*"'],
        "file": "src/publish/publisher.cpp",
        "changes": [
            ("    if (options.busy == BusyPolicy::kReturn) return false;",
             "    if (options.busy == BusyPolicy::kReturn || options.busy != BusyPolicy::kReturn) return false;"),
        ],
    },
    "publisher_never_ends": {
        "breaks": "A publisher does not say that it has ended the publication.",
        "rule": "publication.P10",
        "tests": ['publishers "publisher: the last user*"'],
        "file": "src/publish/publisher.cpp",
        "changes": [
            ("  bundle.newest().ended.store_release(1);  // (publication.P10) before the byte; pairs with remove_if_ended\n",
             ""),
        ],
    },
    "publisher_removes_nothing": {
        "breaks": "A publisher that is the last user does not remove the publication that it has ended.",
        "rule": "names.N9",
        "tests": ['publishers "publisher: the last user*"'],
        "file": "src/publish/publisher.cpp",
        "changes": [
            ("  shm::remove_if_ended(bundle);  // while there are subscribers nothing is removed; the last of them removes it\n",
             ""),
        ],
    },
    "publisher_stays_ended": {
        "breaks": "The next publisher does not say that the publication continues.",
        "rule": "publication.P10",
        "tests": ['publishers "publisher: the next one waits*"'],
        "file": "src/publish/publisher.cpp",
        "changes": [
            ("  state.ended.store_release(0);  // (publication.P10) it continues\n",
             ""),
        ],
    },
    "publisher_takes_any": {
        "breaks": "A publication of other tensors is taken over.",
        "rule": "publication.P3",
        "tests": ['publishers "publisher: a publication of other tensors*"'],
        "file": "src/publish/publisher.cpp",
        "changes": [
            ("      why = difference(bundle.spec(), spec);\n",
             ""),
        ],
    },
    "publisher_takes_orphan": {
        "breaks": "A publication that has lost its name is taken over.",
        "rule": "names.N3",
        "tests": ['publishers "publisher: who takes a byte*"'],
        "file": "src/publish/publisher.cpp",
        "changes": [
            ("    if (!found.is_named(name)) continue;  // (names.N3)\n",
             ""),
        ],
    },
    "publisher_writes_unchanged": {
        "breaks": "Tensors that have not changed are written again.",
        "rule": "publication.P3",
        "tests": ['publication "publication: an unchanged tensor*"'],
        "file": "src/publish/publisher.cpp",
        "changes": [
            ("  std::fill(impl_->changed.begin(), impl_->changed.end(), false);\n",
             "  std::fill(impl_->changed.begin(), impl_->changed.end(), false);\n  impl_->changed[0] = changed.size() == 1;\n"),
        ],
    },
    "round_counts_the_dead": {
        "breaks": "The leader does not wait for what the dead have not written.",
        "rule": "round.R4",
        "tests": ['writers "writers: one that is killed*"'],
        "file": "src/publish/round_writer.cpp",
        "changes": [
            ("      if (!round_.has_done(writer, attempt)) return has_died;",
             "      if (is_alive(writer) && !round_.has_done(writer, attempt)) return has_died;"),
        ],
    },
    "round_done_before_written": {
        "breaks": "A writer says that it has done before it has written.",
        "rule": "round.R3",
        "tests": ['writers "writers: one that is killed*"'],
        "file": "src/publish/round_writer.cpp",
        "changes": [
            ("  write_slices(call, shm::record_of(attempt.round));\n  round_.note_done(attempt);",
             "  round_.note_done(attempt);\n  write_slices(call, shm::record_of(attempt.round));"),
        ],
    },
    "round_gives_back_what_is_written": {
        "breaks": "The leader gives memory back in which a late writer may still write.",
        "rule": "publication.P14",
        "tests": ['writers "writers: one that is late*"'],
        "file": "src/publish/publisher.cpp",
        "changes": [
            ("    if (!impl_->round->leads() || !impl_->round->is_quiet()) return 0;",
             "    if (!impl_->round->leads()) return 0;"),
        ],
    },
    "round_left_open": {
        "breaks": "A new leader does not close the round of the one before.",
        "rule": "round.R8",
        "tests": ['writers "writers: if the leader dies after*"'],
        "file": "src/publish/round_writer.cpp",
        "changes": [
            ("  round_.close();  // (round.R8)\n",
             ""),
        ],
    },
    "round_closed_before_published": {
        "breaks": "The leader closes the round before it publishes the generation.",
        "rule": "round.R5",
        "tests": ['interleavings "moments: when the leader of several writers*"'],
        "file": "src/publish/round_writer.cpp",
        "changes": [
            ("  const std::uint64_t generation = generations_.commit(call.step);  // (round.R5)\n",
             "  round_.close();\n  const std::uint64_t generation = generations_.commit(call.step);\n"),
            ("  shm::fault_point(shm::FaultPoint::kRoundCommitted);\n  round_.close();\n",
             "  shm::fault_point(shm::FaultPoint::kRoundCommitted);\n"),
        ],
    },
    "round_of_any_step": {
        "breaks": "A writer takes part in a round of another step.",
        "rule": "round.R2",
        "tests": ['writers "writers: one that publishes another step*"'],
        "file": "src/shm/publication/round.cpp",
        "changes": [
            ("  if (shared.step.load_relaxed() != step) return false;\n",
             ""),
        ],
    },
    "round_successor_begins_again": {
        "breaks": "The successor of a writer forgets what its predecessor has done.",
        "rule": "round.R7",
        "tests": ['writers "writers: the successor of one*"'],
        "file": "src/publish/publisher.cpp",
        "changes": [
            ("  shm::fault_point(shm::FaultPoint::kWriterTaken);\n",
             "  shm::fault_point(shm::FaultPoint::kWriterTaken);\n  bundle.writer(writer).done.store_relaxed(0);\n"),
        ],
    },
    "slices_overlap": {
        "breaks": "Two writers may have the same elements.",
        "rule": "round",
        "tests": ['slices "writers: plans that lack*"'],
        "file": "src/publish/slices.cpp",
        "changes": [
            ("        if (overlap(*own[i].slice, *own[other].slice))",
             "        if (overlap(*own[i].slice, *own[other].slice) && own.empty())"),
        ],
    },
    "slices_of_another_plan": {
        "breaks": "Writers of different plans fill one generation.",
        "rule": "round",
        "tests": ['slices "writers: another plan*"'],
        "file": "src/publish/publisher.cpp",
        "changes": [
            ('      if (why.empty() && bundle.plan() != plan) why = "other slices of its writers";\n',
             ""),
        ],
    },
    "subscriber_child_gives_back": {
        "breaks": "A forked child gives its parent's lease back.",
        "rule": "locks.L2",
        "tests": ['forked_handles "fork: every call of a parent\'s publisher*"'],
        "file": "src/publish/subscriber.cpp",
        "changes": [
            ("    if (!bundle.is_inherited()) {\n      shm::give_back",
             "    {\n      shm::give_back"),
        ],
    },
    "subscriber_joins_orphan": {
        "breaks": "A subscriber takes a place in a publication that has lost its name.",
        "rule": "names.N3",
        "tests": ['publishers "publisher: who takes a byte*"'],
        "file": "src/publish/subscriber.cpp",
        "changes": [
            ("      if (rank && !place.bundle.is_orphaned()) {",
             "      if (rank) {"),
        ],
    },
    "subscriber_keeps_leases": {
        "breaks": "The owner of a rank keeps the leases of its dead predecessor.",
        "rule": "publication.P12",
        "tests": ['publishers "publisher: the leases of dead*"'],
        "file": "src/publish/subscriber.cpp",
        "changes": [
            ("    for (auto& lease : entry.leases) lease.store_release(0);  // (publication.P12) the predecessor's: it is dead\n",
             ""),
        ],
    },
    "subscriber_lease_forgotten": {
        "breaks": "A generation that is released does not give its lease back.",
        "rule": "publication.P12",
        "tests": ['publication "publication: with three records*"'],
        "file": "src/publish/subscriber.cpp",
        "changes": [
            ("      shm::give_back(entry.leases[lease]);\n",
             ""),
        ],
    },
    "subscriber_newest_first": {
        "breaks": "A reader looks at `newest` before it looks at the publisher's byte.",
        "rule": "publication.P13",
        "tests": ['publishers "publisher: a reader gets the last*"'],
        "file": "src/publish/subscriber.cpp",
        "changes": [
            ("    if (!is_published() && newest() <= newer_than)",
             "    if (newest() <= newer_than && !is_published())"),
        ],
    },
    "subscriber_removes_nothing": {
        "breaks": "The last subscriber of an ended publication does not remove it.",
        "rule": "names.N9",
        "tests": ['publishers "publisher: the last user*"'],
        "file": "src/publish/subscriber.cpp",
        "changes": [
            ("    shm::remove_if_ended(bundle);\n",
             ""),
        ],
    },
    "subscriber_three_leases": {
        "breaks": "A third generation is leased into memory that belongs to another rank.",
        "rule": "publication.P4",
        "tests": ['publication "publication: a subscriber has at most*"'],
        "file": "src/publish/subscriber.cpp",
        "changes": [
            ("    if (lease == shm::kLeases)\n",
             "    if (lease > shm::kLeases)\n"),
        ],
    },
    "subscriber_writable": {
        "breaks": "A subscriber can write to the tensors.",
        "rule": "publication.P5",
        "tests": ['publication "publication: a subscriber cannot write*"'],
        "file": "src/publish/subscriber.cpp",
        "changes": [
            ("    bundle.protect_as_subscriber();\n",
             ""),
        ],
    },
}
