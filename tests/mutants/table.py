"""Tables by key. What the fields mean: tests/mutants/run.py."""

MUTANTS = {
    "table_claim_stored": {
        "breaks": "A free row is claimed by a store, so that two lanes can have it.",
        "rule": "table.I2",
        "tests": ["table_matrix"],
        "file": "src/shm/table/table_part.cpp",
        "changes": [
            ("      if (!row(number).word.try_exchange_acq_rel(word, next_word(word, RowState::kFree, lane.number + 1))) continue;",
             "      row(number).word.store_release(next_word(word, RowState::kFree, lane.number + 1));"),
        ],
    },
    "table_dead_not_unlinked": {
        "breaks": "The hand frees a dead row that may still be linked.",
        "rule": "table.E6",
        "tests": ["table_matrix"],
        "file": "src/shm/table/table_hand.cpp",
        "changes": [
            ("        static_cast<void>(find(lane, bucket, order, key));  // (table.E6)\n        free_dead(lane, at, word);",
             "        free_dead(lane, at, word);"),
        ],
    },
    "table_left_rows_stay": {
        "breaks": "The hand does not take back what a dead lane was making.",
        "rule": "table.E8",
        "tests": ["table_matrix"],
        "file": "src/shm/table/table_hand.cpp",
        "changes": [
            ("void TablePart::recover(TableLane& lane, std::uint64_t number, std::uint64_t word) {",
             "void TablePart::recover(TableLane& lane, std::uint64_t number, std::uint64_t word) {\n  if (word != 0) return;"),
        ],
    },
    "table_note_ignored": {
        "breaks": "The hand takes a row back that a living lane is making.",
        "rule": "table.E1",
        "tests": ["table_matrix"],
        "file": "src/shm/table/table_hand.cpp",
        "changes": [
            ("lanes_[owner - 1].inserting.load_acquire() == at + 1 &&", "lanes_[owner - 1].inserting.load_acquire() == 0 &&"),
        ],
    },
    "table_pins_ignored": {
        "breaks": "Rows that are being pushed are evicted.",
        "rule": "table.E4",
        "tests": ["table_matrix"],
        "file": "src/shm/table/table_hand.cpp",
        "changes": [
            ("return pin.first == one.row && is_alive_(pin.second); });", "return pin.first == one.row && pin.second == ~0U; });"),
        ],
    },
    "table_path_not_looked_at": {
        "breaks": "A search trusts a row that it has reached over a path that has changed.",
        "rule": "table.F2",
        "tests": ['weak_weak "weak: tables by key"'],
        "file": "src/shm/table/table_part.cpp",
        "changes": [
            ("      if (at.previous->load_relaxed() != at.previous_word) break;  // (table.F2) it was linked, so its key stands\n",
             ""),
        ],
    },
    "table_row_not_looked_at": {
        "breaks": "A push does not look whether the row that it has pinned is still the key's.",
        "rule": "table.P3",
        "tests": ["table_matrix"],
        "file": "src/shm/table/table_part.cpp",
        "changes": [
            ("    if (there.key.load_relaxed() != key) return false;\n    if (state_of(word) == RowState::kLive) return true;",
             "    if (state_of(word) == RowState::kLive) return true;"),
        ],
    },
    "table_copy_not_looked_at": {
        "breaks": "A pull takes what it has copied from a row that has changed hands meanwhile.",
        "rule": "table.R3",
        "tests": ['weak_weak "weak: tables by key"'],
        "file": "src/shm/table/table_part.hpp",
        "changes": [
            ("      if (there.word.load_relaxed() != word) continue;  // (table.R3)\n      if (shm_.touch_on_pull",
             "      if (shm_.touch_on_pull"),
        ],
    },
    "table_hint_trusted": {
        "breaks": "The row that a prefetch has met last is taken for the key's.",
        "rule": "table.R1",
        "tests": ["table"],
        "file": "src/shm/table/table_part.cpp",
        "changes": [
            ("(state_of(word) == RowState::kLive || state_of(word) == RowState::kSealed) &&\n"
             "                      there.key.load_relaxed() == batch.keys[i];",
             "state_of(word) == RowState::kLive || state_of(word) == RowState::kSealed;"),
        ],
    },
    "table_pins_not_dumped": {
        "breaks": "A dump leaves out rows that are being pushed.",
        "rule": "table.D2",
        "tests": ["interleavings"],
        "file": "src/shm/table/table_dump.cpp",
        "changes": [
            ("        raise(row(pinned - 1).changed, dump);", "        static_cast<void>(row(pinned - 1).changed);"),
        ],
    },
    "table_change_not_noted": {
        "breaks": "A push notes the change of a row that has not changed before, and no later one.",
        "rule": "table.P4",
        "tests": ["table_dump"],
        "file": "src/shm/table/table_part.cpp",
        "changes": [
            ("    raise(row(*found[i]).changed, shm_.dump_epoch.load_relaxed());", "    raise(row(*found[i]).changed, 1);"),
        ],
    },
    "table_eviction_listed_once": {
        "breaks": "An evictor does not look whether a dump has begun since it has listed its keys.",
        "rule": "table.L2",
        "tests": ["interleavings"],
        "file": "src/shm/table/table_dump.cpp",
        "changes": [
            ("    if (shm_.dump_epoch.load_relaxed() == epoch) return;", "    if (shm_.dump_epoch.load_relaxed() >= epoch) return;"),
        ],
    },
    "table_lost_entries_unsaid": {
        "breaks": "A ring of evicted keys that goes round says nothing of the entries that are overwritten.",
        "rule": "table.L1",
        "tests": ["table_dump"],
        "file": "src/shm/table/table_dump.cpp",
        "changes": [
            ("  if (number >= shm_.listed_at_most) lost = std::max(lost, entry.epoch.load_relaxed());\n", ""),
        ],
    },
    "table_seal_outlives_dump": {
        "breaks": "A dump leaves a listed row as it is that is about to be evicted.",
        "rule": "table.D3",
        "tests": ["interleavings"],
        "file": "src/shm/table/table_dump.cpp",
        "changes": [
            ("    if (state_of(word) == RowState::kSealed) {", "    if (state_of(word) == RowState::kDead) {"),
        ],
    },
    "table_eviction_listed_late": {
        "breaks": "An eviction is listed once it has happened.",
        "rule": "table.L1",
        "tests": ["interleavings"],
        "file": "src/shm/table/table_hand.cpp",
        "changes": [
            ("  list_sealed(lane);  // its fence is table.E3's: pairs with table.P2\n  lane.pinned.clear();",
             "  fence_store_load();\n  lane.pinned.clear();"),
            ("  lane.sealed.clear();\n  return evicted;", "  list_sealed(lane);\n  lane.sealed.clear();\n  return evicted;"),
        ],
    },
    "table_circle_not_noticed": {
        "breaks": "A search in a damaged list does not notice that it comes back to a row.",
        "rule": "table.F3",
        "tests": ['table_view "table: a damaged list*"'],
        "file": "src/shm/table/table_part.cpp",
        "changes": [
            ("      if (its_order <= order_before && (its_order < order_before || its_key <= key_before))\n        fail_damaged_list(at.current);\n",
             "      static_cast<void>(order_before), static_cast<void>(key_before);\n"),
        ],
    },
    "table_look_trusts_path": {
        "breaks": "Who looks at a table in use takes a row for linked that it has reached over a path that has changed.",
        "rule": "table.F2",
        "tests": ['table_view "table: a look*"'],
        "file": "src/shm/table/census.cpp",
        "changes": [
            ("      if (kept->load_relaxed() != kept_word) return found; ", "      ;"),
        ],
    },
    "table_not_restored": {
        "breaks": "A table of a job that begins with a checkpoint begins empty.",
        "rule": "table checkpoint",
        "tests": ["table_checkpoint"],
        "file": "src/shm/table/table_segment.cpp",
        "changes": [
            ("    fill(part);\n", ""),
        ],
    },
    "table_state_not_restored": {
        "breaks": "Rows are assigned with the state that a new row has.",
        "rule": "table checkpoint",
        "tests": ["table_checkpoint", "table_dump"],
        "file": "src/shm/table/row_form.hpp",
        "changes": [
            ("        numbers[place] = update::rounded_to_nearest(state[i]);", "        static_cast<void>(numbers[place] == state[i]);"),
            ("        raw[place] = state[i];", "        static_cast<void>(raw[place] == state[i]);"),
        ],
    },
    "table_bfloat16_stored": {
        "breaks": "Numbers of bfloat16 are stored, not exchanged, where 16 bytes are too many.",
        "rule": "inplace.P7",
        "tests": ['bfloat16_tables "table of bfloat16: no push is lost*"'],
        "file": "src/shm/slots/inplace_bfloat16.hpp",
        "changes": [
            ("  while (!__atomic_compare_exchange_n(word, &expected, updated_numbers(expected, gradient, update, rounding, number),\n"
             "                                      false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {\n"
             "  }",
             "  __atomic_store_n(word, updated_numbers(expected, gradient, update, rounding, number), __ATOMIC_RELAXED);"),
        ],
    },
    "table_bfloat16_nearest": {
        "breaks": "Pushes round rows of bfloat16 to nearest.",
        "rule": "inplace.P7",
        "tests": ['bfloat16_tables "table of bfloat16: the mean of many*"'],
        "file": "src/shm/slots/inplace_bfloat16.hpp",
        "changes": [("    return update::round_by(value, update::rounding_bits(key, static_cast<std::uint32_t>(first + number)));",
                     "    return static_cast<void>(number), update::rounded_to_nearest(value);")],
    },
    "table_bfloat16_state_overlaps": {
        "breaks": "The state of a row of bfloat16 lies where its last element may lie.",
        "rule": "inplace.P7",
        "tests": ['bfloat16_tables "table of bfloat16: every rule*"'],
        "file": "src/shm/slots/inplace_bfloat16.hpp",
        "changes": [("(row.first) + floats_of_bfloat16(count);", "(row.first) + count / 2;")],
    },
    "table_bfloat16_same_bits": {
        "breaks": "All pushes of a row of bfloat16 are rounded by the same random bits.",
        "rule": "table.P6",
        "tests": ['bfloat16_tables "table of bfloat16: the mean of many*"'],
        "file": "src/worker/table_state.hpp",
        "changes": [("{update::rounding_key(of_key, shm::TablePart::count_push(row))}", "{update::rounding_key(of_key, 0)}")],
    },
    "table_bfloat16_any_key": {
        "breaks": "The random bits of a push do not depend on the row's key.",
        "rule": "table.P6",
        "tests": ['bfloat16_tables "table of bfloat16: every rule*"'],
        "file": "src/worker/table_state.hpp",
        "changes": [("update::mixed(rounding ^ key)", "update::mixed(rounding) + 0 * key")],
    },
    "table_bfloat16_count_stays": {
        "breaks": "A row that is made goes on with the number of pushes of the row that was there before.",
        "rule": "table.P6",
        "tests": ['bfloat16_tables "table of bfloat16: the same pushes*"'],
        "file": "src/shm/table/table_part.cpp",
        "changes": [("      made.pushes.store_relaxed(0);\n", "")],
    },
    "table_bfloat16_first_values": {
        "breaks": "A key without a row reads initial values that a row of bfloat16 cannot have.",
        "rule": "table.I3",
        "tests": ['bfloat16_tables "table of bfloat16: every rule*"'],
        "file": "src/worker/table.cpp",
        "changes": [("is_rounded ? float{update::BFloat16{update::rounded_to_nearest(value)}} : value", "is_rounded ? value : value")],
    },
    "table_bfloat16_agreement": {
        "breaks": "Workers may declare a table with different types.",
        "rule": "table declaration",
        "tests": ['bfloat16_tables "table of bfloat16: what is not possible*"'],
        "file": "src/shm/table/table_segment.cpp",
        "changes": [('  disagree("dtype", name_of(there.dtype), name_of(wanted.dtype));',
                     "  static_cast<void>(name_of);")],
    },
    "table_bfloat16_checked": {
        "breaks": "A segment whose record names another type is taken for a table.",
        "rule": "table declaration",
        "tests": ['bfloat16_tables "table of bfloat16: what is not possible*"'],
        "file": "src/shm/table/table_segment.cpp",
        "changes": [("      !update::takes_gradients(static_cast<DType>(there.dtype)))", "      false)")],
    },
    "table_bfloat16_rows_read": {
        "breaks": "Rows of bfloat16 in a checkpoint are not widened.",
        "rule": "table.D4",
        "tests": ['bfloat16_tables "table of bfloat16: checkpoints*"'],
        "file": "src/persistence/checkpoint.cpp",
        "changes": [("  if (stored->dtype == DType::kBFloat16) update::widen_in_place(values.data(), values.size());",
                     "  static_cast<void>(update::widen_in_place);")],
    },
    "table_bucket_word_late": {
        "breaks": "The word of a bucket is read after the search for its place.",
        "rule": "table.G1",
        "tests": ['interleavings "table moments: a worker that makes rows*"'],
        "file": "src/shm/table/table_part.cpp",
        "changes": [
            ("    const Position at = find(lane, parent, order_of_bucket(bucket), 0);\n",
             "    const Position at = find(lane, parent, order_of_bucket(bucket), 0);\n    word = buckets_[bucket].load_acquire();\n"),
        ],
    },
    "table_parent_not_linked": {
        "breaks": "A bucket is linked by a search from one that is not linked.",
        "rule": "table.G1",
        "tests": ['interleavings "table moments: a worker that makes rows*"'],
        "file": "src/shm/table/table_part.cpp",
        "changes": [("  link_bucket(lane, parent);\n", "")],
    },
    "table_bucket_stored": {
        "breaks": "A bucket is made ready by a store, though others may have linked it.",
        "rule": "table.G2",
        "tests": ['interleavings "table moments: a worker that makes rows*"'],
        "file": "src/shm/table/table_part.cpp",
        "changes": [
            ("    if (!buckets_[bucket].try_exchange_acq_rel(word, ready)) continue;  // (table.G2)\n",
             "    buckets_[bucket].store_release(ready);\n"),
        ],
    },
    "table_bucket_linked_by_store": {
        "breaks": "A bucket is linked by a store, though rows may have come before it.",
        "rule": "table.G3",
        "tests": ['interleavings "table moments: a worker that makes rows*"'],
        "file": "src/shm/table/table_part.cpp",
        "changes": [
            ("    static_cast<void>(at.previous->try_exchange_acq_rel(  // (table.G3) won or lost: the next search shows it\n"
             "        expected, next_word(at.previous_word, state_of(at.previous_word), kBucketKind | bucket)));",
             "    static_cast<void>(expected);\n"
             "    at.previous->store_release(next_word(at.previous_word, state_of(at.previous_word), kBucketKind | bucket));"),
        ],
    },
    "table_bucket_live_unseen": {
        "breaks": "A bucket is live without another search, which would show whether it is linked.",
        "rule": "table.G3",
        "tests": ['interleavings "table moments: a worker that makes rows*"'],
        "file": "src/shm/table/table_part.cpp",
        "changes": [
            ("    const std::uint64_t ready = next_word(word, RowState::kNew, at.current);",
             "    const std::uint64_t ready = next_word(word, RowState::kLive, at.current);"),
        ],
    },
    "table_doubled_twice": {
        "breaks": "Two workers that double the buckets at the same time double them twice.",
        "rule": "table.G4",
        "tests": ['interleavings "table moments: a worker that makes rows*"'],
        "file": "src/shm/table/table_part.cpp",
        "changes": [
            ("  static_cast<void>(shm_.bits.try_exchange_acq_rel(bits, bits + 1));",
             "  shm_.bits.store_release(shm_.bits.load_relaxed() + 1);"),
        ],
    },
    "table_rows_stored": {
        "breaks": "Who takes unused rows may take back what another worker has taken meanwhile.",
        "rule": "table.A1",
        "tests": ['interleavings "table moments: a worker that makes rows*"'],
        "file": "src/shm/table/table_part.cpp",
        "changes": [
            ("  } while (!shm_.rows_next.try_exchange_acq_rel(next, end));  // (table.A1)\n",
             "  } while (shm_.rows_next.store_release(end), false);\n"),
        ],
    },
    "table_rows_without_memory": {
        "breaks": "Unused rows are taken before they have memory.",
        "rule": "table.A1",
        "tests": ['interleavings "table moments: a worker that makes rows*"'],
        "file": "src/shm/table/table_part.cpp",
        "changes": [
            ("    if (!has_memory(end)) return false;\n  } while (!shm_.rows_next.try_exchange_acq_rel(next, end));  // (table.A1)\n",
             "  } while (!shm_.rows_next.try_exchange_acq_rel(next, end));\n  if (!has_memory(end)) return false;\n"),
        ],
    },
    "table_note_late": {
        "breaks": "A row is claimed before it is noted.",
        "rule": "table.I1",
        "tests": ['interleavings "table moments: whatever another worker*"'],
        "file": "src/shm/table/table_part.cpp",
        "changes": [
            ("      lane.shared->inserting.store_release(std::uint64_t{number} + 1);  // (table.I1) before the claim\n", ""),
            ("      fault_point(FaultPoint::kRowClaimed);\n",
             "      fault_point(FaultPoint::kRowClaimed);\n      lane.shared->inserting.store_release(std::uint64_t{number} + 1);\n"),
        ],
    },
    "table_new_row_leads_nowhere": {
        "breaks": "A row that is made does not lead to the rows behind it.",
        "rule": "table.I4",
        "tests": ['table "table: it grows*"'],
        "file": "src/shm/table/table_part.cpp",
        "changes": [
            ("    const std::uint64_t ready = next_word(word.load_relaxed(), RowState::kNew, at.current);",
             "    const std::uint64_t ready = next_word(word.load_relaxed(), RowState::kNew, kEndOfList);"),
        ],
    },
    "table_row_linked_by_store": {
        "breaks": "A row is linked by a store, though another one may have been linked there.",
        "rule": "table.I5",
        "tests": ['interleavings "table moments: whatever another worker*"'],
        "file": "src/shm/table/table_part.cpp",
        "changes": [
            ("    if (!at.previous->try_exchange_acq_rel(expected, next_word(at.previous_word, state_of(at.previous_word), *mine)))\n"
             "      continue;\n",
             "    static_cast<void>(expected);\n"
             "    at.previous->store_release(next_word(at.previous_word, state_of(at.previous_word), *mine));\n"),
        ],
    },
    "table_live_before_linked": {
        "breaks": "A row is live before it is linked.",
        "rule": "table.I6",
        "tests": ['interleavings "table moments: whatever another worker*"'],
        "file": "src/shm/table/table_part.cpp",
        "changes": [
            ("    const std::uint64_t ready = next_word(word.load_relaxed(), RowState::kNew, at.current);",
             "    const std::uint64_t ready = next_word(word.load_relaxed(), RowState::kLive, at.current);"),
            ("    make_live(*mine, ready);\n", "    fault_point(FaultPoint::kRowLive);\n"),
        ],
    },
    "table_note_stays": {
        "breaks": "A note stays when its row has been linked.",
        "rule": "table.I7",
        "tests": ['interleavings "table moments: what a dead worker*"'],
        "file": "src/shm/table/table_part.cpp",
        "changes": [
            ("    make_live(*mine, ready);\n    lane.shared->inserting.store_release(0);  // (table.I7)\n", "    make_live(*mine, ready);\n"),
        ],
    },
    "table_evicted_from_new_word": {
        "breaks": "An eviction takes a row whose word has changed since it was sealed.",
        "rule": "table.E5",
        "tests": ['interleavings "table moments: a dump at any moment*"'],
        "file": "src/shm/table/table_hand.cpp",
        "changes": [
            ("    if (!there.word.try_exchange_acq_rel(word, dead)) continue;\n",
             "    word = there.word.load_acquire();\n    if (!there.word.try_exchange_acq_rel(word, dead)) continue;\n"),
        ],
    },
    "table_pins_of_the_dead": {
        "breaks": "The next owner of a rank begins with the pins of the one before it.",
        "rule": "table.P0",
        "tests": ['interleavings "table moments: what a dead worker*"'],
        "file": "src/shm/table/table_part.cpp",
        "changes": [
            ("  for (AtomicShm<std::uint64_t>& pin : lane.shared->pins) pin.store_release(0);  // (table.P0) pairs with table.D2\n", ""),
        ],
    },
    "table_note_of_the_dead": {
        "breaks": "The next owner of a rank begins with the note of the one before it.",
        "rule": "table.P0",
        "tests": ['interleavings "table moments: what a dead worker*"'],
        "file": "src/shm/table/table_part.cpp",
        "changes": [
            ("  lane.shared->inserting.store_release(0);  // (table.P0)\n", ""),
        ],
    },
    "table_lane_not_looked_at": {
        "breaks": "Evictors are not told that a lane is in use, and do not look at its pins.",
        "rule": "table.P0",
        "tests": ['interleavings "table moments: whatever another worker*"'],
        "file": "src/shm/table/table_part.cpp",
        "changes": [
            ("  while (used <= number && !shm_.lanes_used.try_exchange_acq_rel(used, number + 1)) {",
             "  while (used < number && !shm_.lanes_used.try_exchange_acq_rel(used, number)) {"),
        ],
    },
    "table_row_not_pinned": {
        "breaks": "A push looks at its rows before it has pinned them.",
        "rule": "table.P1",
        "tests": ['interleavings "table moments: whatever another worker*"'],
        "file": "src/shm/table/table_part.cpp",
        "changes": [
            ("    pins[i].store_release(found[i] ? *found[i] + 1 : 0);", "    if (!found[i]) pins[i].store_release(0);"),
            ("    raise(row(*found[i]).changed,", "    pins[i].store_release(*found[i] + 1);\n    raise(row(*found[i]).changed,"),
        ],
    },
    "table_push_without_fence": {
        "breaks": "A push looks at its rows without a fence behind its pins.",
        "rule": "table.P2",
        "tests": ['weak_weak "weak: tables by key"'],
        "file": "src/shm/table/table_part.cpp",
        "changes": [("  fence_store_load();  // (table.P2) pairs with table.E3\n", "")],
    },
    "table_row_stays_pinned": {
        "breaks": "The rows of a push that has ended stay pinned.",
        "rule": "table.P5",
        "tests": ['table "table: evicted and assigned rows*"'],
        "file": "src/shm/table/table_part.cpp",
        "changes": [("    if (pin.load_relaxed() != 0) pin.store_release(0);  // (table.P5)", "    static_cast<void>(pin);")],
    },
    "table_dump_without_fence": {
        "breaks": "A dump looks at the pins without a fence behind its number.",
        "rule": "table.D1",
        "tests": ['weak_weak "weak: tables by key"'],
        "file": "src/shm/table/table_dump.cpp",
        "changes": [("  fence_store_load();            // (table.D1) pairs with table.P2, table.L2\n", "")],
    },
    "table_parts_dumped_apart": {
        "breaks": "The parts of a table but the first are not told of a dump.",
        "rule": "table.D1",
        "tests": ["table_dump"],
        "file": "src/shm/table/table_dump.cpp",
        "changes": [("  raise(shm_.dump_epoch, dump);", "  static_cast<void>(shm_.dump_epoch);")],
    },
    "table_admitted_early": {
        "breaks": "A key gets a row one push too early.",
        "rule": "table admission",
        "tests": ['table "table: a key is admitted*"'],
        "file": "src/shm/table/table_part.cpp",
        "changes": [("  if (seen >= shm_.admit_after) {", "  if (seen + 1 >= shm_.admit_after) {")],
    },
    "table_admission_not_counted": {
        "breaks": "One of the two cells that count the pushes of a key is not written.",
        "rule": "table admission",
        "tests": ['table "table: a key is admitted*"'],
        "file": "src/shm/table/table_part.cpp",
        "changes": [("    if (const std::uint8_t there = cell->hint(); there < seen) cell->leave_hint(",
                     "    if (const std::uint8_t there = cell->hint(); there < seen && cell == cells[0]) cell->leave_hint(")],
    },
    "table_rows_never_expire": {
        "breaks": "The hand leaves rows that are too old, unless it needs their room.",
        "rule": "table ttl",
        "tests": ['table "table: rows that nobody*"'],
        "file": "src/shm/table/table_hand.cpp",
        "changes": [("        if (is_expired) {", "        if (is_expired && wanted != 0) {")],
    },
    "table_pulls_always_count": {
        "breaks": "Pulls count as uses even where they shall not.",
        "rule": "table ttl",
        "tests": ['table "table: pulls count*"'],
        "file": "src/shm/table/table_part.hpp",
        "changes": [
            ("    if (i == 0 && shm_.touch_on_pull != 0) note_time(lane);", "    if (i == 0) note_time(lane);"),
            ("      if (shm_.touch_on_pull != 0) touch(lane, there);", "      touch(lane, there);"),
        ],
    },
    "table_sealed_row_not_rescued": {
        "breaks": "A push goes on with a row that an evictor has sealed, and leaves the seal.",
        "rule": "table.P3",
        "tests": ["table_matrix"],
        "file": "src/shm/table/table_part.cpp",
        "changes": [
            ("    if (state_of(word) == RowState::kLive) return true;\n    if (there", "    if (word != 0) return true;\n    if (there"),
        ],
    },
    "table_uses_all_counted": {
        "breaks": "Every use of a row is counted, so that rows which are used often soon count the same.",
        "rule": "table lfu",
        "tests": ['table_part "table part: the first sixteen*"'],
        "file": "src/shm/table/table_hand.cpp",
        "changes": [("    if (frequency < kExactFrequency || lane.draw() % (4 * (frequency - kExactFrequency) + 4) == 0) ++frequency;",
                     "    ++frequency;")],
    },
    "table_uses_steps_equal": {
        "breaks": "From the sixteenth use of a row on, each fourth is counted, however many there were.",
        "rule": "table lfu",
        "tests": ['table_part "table part: the first sixteen*"'],
        "file": "src/shm/table/table_hand.cpp",
        "changes": [("lane.draw() % (4 * (frequency - kExactFrequency) + 4) == 0", "lane.draw() % 4 == 0")],
    },
    "table_uses_never_fade": {
        "breaks": "A row that was used often keeps its place for ever.",
        "rule": "table lfu",
        "tests": ['table_part "table part: rows that were used often*"'],
        "file": "src/shm/table/table_hand.cpp",
        "changes": [("        if (by_frequency && frequency != 0 && lane.draw() % 8 == 0)",
                     "        if (by_frequency && frequency == ~0U)")],
    },
    "table_uses_fade_unasked": {
        "breaks": "Each pass of the hand takes from the counts, also where nothing has to be evicted.",
        "rule": "table lfu",
        "tests": ['table_part "table part: rows that were used often*"'],
        "file": "src/shm/table/table_hand.cpp",
        "changes": [("        if (wanted == 0) break;\n", "")],
    },
    "table_admission_never_fades": {
        "breaks": "Pushes of keys without rows count for ever.",
        "rule": "table admission",
        "tests": ['table_part "table part: pushes of keys*"'],
        "file": "src/shm/table/table_part.cpp",
        "changes": [("    if (lane.draw() % kEvery != 0) return true;", "    if (lane.draw() % kEvery != kEvery) return true;")],
    },
    "table_admission_forgotten": {
        "breaks": "The counts of keys without rows are cleared where they are to be halved.",
        "rule": "table admission",
        "tests": ['table_part "table part: pushes of keys*"'],
        "file": "src/shm/table/table_part.cpp",
        "changes": [("there != 0) line[i].leave_hint(there / 2);", "there != 0) line[i].leave_hint(0);")],
    },
    "table_spared_not_counted": {
        "breaks": "A row that is spared, as somebody is pushing it, is not counted.",
        "rule": "table counters",
        "tests": ['interleavings "table moments: whatever*"'],
        "file": "src/shm/table/table_hand.cpp",
        "changes": [("      count(lane, TableCounter::kSpared);\n", "")],
    },
    "table_rescued_not_counted": {
        "breaks": "A row that is rescued by a push is not counted.",
        "rule": "table counters",
        "tests": ['interleavings "table moments: whatever*"'],
        "file": "src/shm/table/table_part.cpp",
        "changes": [("      count(lane, TableCounter::kRescued);\n", "")],
    },
}
