"""Publications. What the fields mean: tests/mutants/run.py."""

MUTANTS = {
    "look_at_unchecked": {
        "breaks": "A reader without a lease does not check the stamp again.",
        "rule": "publication.P11",
        "tests": ['PS_SHM_WEAK_SCENE=publication weak_weak "weak: futexes*"'],
        "file": "src/shm/publication/publication.cpp",
        "changes": [
            ("  if (shared.stamp.load_relaxed() != seen.generation) return std::nullopt;\n",
             ""),
        ],
    },
    "publication_child_not_refused": {
        "breaks": "A forked child may use its parent's publisher and generations, whose memory it does not have.",
        "rule": "locks.L2",
        "tests": ['forked_handles "fork: every call of a parent\'s publisher*"'],
        "file": "src/shm/publication/bundle.hpp",
        "changes": [
            ("    if (is_inherited()) [[unlikely]]\n      fail_inherited(what);",
             "    if (what == nullptr) [[unlikely]]\n      fail_inherited(what);"),
        ],
    },
    "publication_leases_of_the_dead": {
        "breaks": "The leases of dead subscribers keep records in use.",
        "rule": "publication.P2",
        "tests": ['publishers "publisher: the leases of dead*"'],
        "file": "src/shm/publication/publication.cpp",
        "changes": [
            ("      if (looks_at_locks && !bundle_.locks().is_held_by_other(kSubscriberByte + rank)) continue;",
             "      if (looks_at_locks && rank >= bundle_.subscribers()) continue;"),
        ],
    },
    "publication_moved_first": {
        "breaks": "The number of the newest generation advances before the generation is written.",
        "rule": "publication.P8",
        "tests": ['PS_SHM_WEAK_SCENE=publication weak_weak "weak: futexes*"'],
        "file": "src/shm/publication/publication.cpp",
        "changes": [
            ("  std::uint64_t written = 0, count = 0;",
             '''  state.newest.store_release(make_newest(generation, record_));
  std::uint64_t written = 0, count = 0;'''),
        ],
    },
    "publication_newest_free": {
        "breaks": "The newest record is not treated as taken.",
        "rule": "publication.P2",
        "tests": ['PS_SHM_WEAK_SCENE=publication weak_weak "weak: futexes*"'],
        "file": "src/shm/publication/publication.cpp",
        "changes": [
            ("  if (generation_of(newest) != 0) taken_.set(record_of(newest));\n",
             ""),
        ],
    },
    "publication_silent": {
        "breaks": "A new generation does not wake waiting readers.",
        "rule": "publication.P9",
        "tests": ['publication "publication: a new generation wakes*"'],
        "file": "src/shm/publication/publication.cpp",
        "changes": [
            ("  futex_announce(bundle_.waiters().futex);  // publication.P9\n",
             ""),
        ],
    },
    "publication_unfenced": {
        "breaks": "A publisher reads the leases without a fence.",
        "rule": "publication.P1",
        "tests": ['PS_SHM_WEAK_SCENE=publication weak_weak "weak: futexes*"'],
        "file": "src/shm/publication/publication.cpp",
        "changes": [
            ("  fence_store_load();  // (publication.P1) after `newest` advanced, before leases are read; pairs with publication.P4\n",
             ""),
        ],
    },
    "publication_unmarked": {
        "breaks": "A record that is being written is not marked as such.",
        "rule": "publication.P6",
        "tests": ['PS_SHM_WEAK_SCENE=publication weak_weak "weak: futexes*"'],
        "file": "src/shm/publication/publication.cpp",
        "changes": [
            ("  bundle_.record(record_).stamp.store_relaxed(kNoGeneration);\n",
             ""),
        ],
    },
    "publication_used_slot": {
        "breaks": "Buffers that only one taken record refers to may be overwritten.",
        "rule": "publication.P3",
        "tests": ['PS_SHM_WEAK_SCENE=publication weak_weak "weak: futexes*"'],
        "file": "src/shm/publication/publication.cpp",
        "changes": [
            ("    if (slot < bundle_.records()) used.set(slot);",
             "    if (slot < bundle_.records() && record == living_.front()) used.set(slot);"),
        ],
    },
    "lease_no_second_look": {
        "breaks": "A lease is valid without a second check.",
        "rule": "publication.P5",
        "tests": ['PS_SHM_WEAK_SCENE=publication weak_weak "weak: futexes*"'],
        "file": "src/shm/publication/publication.hpp",
        "changes": [
            ("    if (newest.newest.load_acquire() == word) return word;  // (publication.P5)",
             "    return word;  // (publication.P5)"),
        ],
    },
    "publication_trims_leased": {
        "breaks": "Trimming takes the memory of leased generations.",
        "rule": "publication.P14",
        "tests": ['publication_memory "publication memory: trimming*"'],
        "file": "src/shm/publication/publication.cpp",
        "changes": [
            ("    if (taken_[number]) living_.push_back(number);",
             "    if (taken_[number] && (!looks_at_locks || taken_.count() == bundle_.records() || number == record_of(newest))) living_.push_back(number);"),
        ],
    },
    "publication_trimmed_forgotten": {
        "breaks": "The publisher forgets that it has trimmed a slot, so a full /dev/shm ends it by SIGBUS.",
        "rule": "publication.P14",
        "tests": ['publication_memory "publication memory: when /dev/shm is full*"'],
        "file": "src/shm/publication/publication.cpp",
        "changes": [
            ("has_memory_[tensor].reset(slot);", "has_memory_[tensor].set(slot, has_memory_[tensor][slot]);"),
        ],
    },
    "publication_unallocated": {
        "breaks": "Slots are written without memory being reserved for them.",
        "rule": "publication.P14",
        "tests": ['publication_memory "publication memory: when /dev/shm is full*"'],
        "file": "src/shm/publication/bundle.cpp",
        "changes": [
            ("  segment_.allocate(begin, begin + tensor_bytes(tensor));",
             "  segment_.allocate(begin, begin + 1);"),
        ],
    },
    "publication_trims_borders": {
        "breaks": "Trimming a run of tensors takes the one behind it, too.",
        "rule": "publication.P14",
        "tests": ['publication_memory "publication memory: trimming*"'],
        "file": "src/shm/publication/publication.cpp",
        "changes": [
            ("bundle_.give_back(first, last, slot);",
             "bundle_.give_back(first, std::min(last + 1, bundle_.tensors() - 1), slot);"),
        ],
    },
    "publication_acknowledgement_silent": {
        "breaks": "An acknowledgement does not wake the publisher.",
        "rule": "publication.P15",
        "tests": ['publication_memory "acknowledgements: one ends*"'],
        "file": "src/publish/subscriber.cpp",
        "changes": [
            ("  shm::futex_announce(impl_->bundle.waiters().acknowledgement);\n", ""),
        ],
    },
    "publication_acknowledgement_inherited": {
        "breaks": "The next owner of a rank keeps the acknowledgement of a killed one.",
        "rule": "publication.P15",
        "tests": ['publication_memory "acknowledgements: the next owner*"'],
        "file": "src/publish/subscriber.cpp",
        "changes": [
            ("    entry.acknowledged.store_relaxed(0);                            // (publication.P15) the same\n", ""),
        ],
    },
    "publication_acknowledgement_of_the_dead": {
        "breaks": "The acknowledgements of killed subscribers count.",
        "rule": "publication.P15",
        "tests": ['publication_memory "acknowledgements: the next owner*"'],
        "file": "src/publish/publisher.cpp",
        "changes": [
            ("      if (!bundle.locks().is_held_by_other(shm::kSubscriberByte + rank)) continue;\n      has ?",
             "      if (!has && !bundle.locks().is_held_by_other(shm::kSubscriberByte + rank)) continue;\n      has ?"),
        ],
    },
    "publication_rounds_down": {
        "breaks": "Floats are truncated to bfloat16.",
        "rule": "publication",
        "tests": ['publication_memory "publication copies: floats*"'],
        "file": "src/update/bfloat16.hpp",
        "changes": [("round_by(value, 0x7fff + (std::bit_cast<std::uint32_t>(value) >> 16 & 1))", "round_by(value, 0)")],
    },
    "publication_streams_short": {
        "breaks": "The last bytes of a tensor that is copied around the caches are left out.",
        "rule": "publication",
        "tests": ['publication_memory "publication copies: tensors*"'],
        "file": "src/shm/base/streaming.cpp",
        "changes": [("  std::memcpy(to, from, bytes);\n  _mm_sfence();", "  _mm_sfence();")],
    },
    "publication_pins_ignored": {
        "breaks": "Trimming takes the memory of rows that a live subscriber has pinned.",
        "rule": "publication.P16",
        "tests": ['publication_memory "publication memory: a row that a live*"'],
        "file": "src/shm/publication/publication.cpp",
        "changes": [
            ("(pinned >> slot & 1) != 0) continue;", "(pinned >> slot & 1) > 1) continue;"),
        ],
    },
}
