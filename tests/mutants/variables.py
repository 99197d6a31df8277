"""Variables: slots, free buffers, the directory, what is checked at attaching, shared data. What the fields mean: tests/mutants/run.py."""

MUTANTS = {
    "bfloat16_division": {
        "breaks": "Elements of bfloat16 are rounded by their number in the chunk, not in the variable.",
        "rule": "slot.V8",
        "tests": ['rounding "rounding: an update does not depend*"',
                  'bfloat16_variables "bfloat16: one worker*"'],
        "file": "src/update/rules.cpp",
        "changes": [("round_stochastically(block, after, n, call.rounding, first + at);",
                     "round_stochastically(block, after, n, call.rounding, at);")],
    },
    "bfloat16_gradients_of_values": {
        "breaks": "A sync step reads the gradient of a chunk of bfloat16 where its values would be.",
        "rule": "slot.V8",
        "tests": ['bfloat16_variables "bfloat16: three workers*"'],
        "file": "src/worker/sync_work.cpp",
        "changes": [("one.gradient += target.variable.gradient_begin(chunk);",
                     "one.gradient += target.variable.chunk_begin(chunk);")],
    },
    "bfloat16_nearest": {
        "breaks": "Updates of bfloat16 are rounded to nearest.",
        "rule": "slot.V8",
        "tests": ['rounding "rounding: changes that are too small*"'],
        "file": "src/update/rules.cpp",
        "changes": [("round_stochastically(block, after, n, call.rounding, first + at);",
                     "round_to_nearest(block, after, n);")],
    },
    "bfloat16_padding": {
        "breaks": "The half of a float behind the last element of bfloat16 keeps what the buffer had before.",
        "rule": "slot.V8",
        "tests": ['rounding "rounding: each rule computes*"'],
        "file": "src/update/bfloat16.hpp",
        "changes": [("    if ((begin + count) % 2 != 0) to[begin + count] = 0;", "    if (count == 0) to[begin] = 0;")],
    },
    "bfloat16_same_bits": {
        "breaks": "All updates of a chunk of bfloat16 are rounded by the same random bits.",
        "rule": "slot.V8",
        "tests": ['rounding "rounding: changes that are too small*"'],
        "file": "src/update/rules.cpp",
        "changes": [("call.rounding = rounding_key(call.settings.rounding, updates);",
                     "call.rounding = rounding_key(call.settings.rounding, 0);")],
    },
    "bfloat16_whoever_computes": {
        "breaks": "Two workers round an update of bfloat16 by different random bits.",
        "rule": "slot.V8",
        "tests": ['bfloat16_variables "bfloat16: three workers*"'],
        "file": "src/worker/sync_work.cpp",
        "changes": [("shm::settings_of(core_.config, record)});",
                     "shm::settings_of(core_.config, record)});\n    target.settings.rounding += core_.rank;")],
    },
    "directory_any_index": {
        "breaks": "An index that names no record is followed.",
        "rule": "directory.D7",
        "tests": ['directory "directory: an index that does not name*"'],
        "file": "src/shm/segment/directory.cpp",
        "changes": [
            ("  if (entry == 0 || (entry > covered_ && !job_.has_records(entry)))  // directory.D7",
             "  if (entry == 0)  // directory.D7"),
        ],
    },
    "directory_claim_lost": {
        "breaks": "A record that a dead process had claimed for a declaration is lost to its successor.",
        "rule": "directory.D4",
        "tests": ['directory "directory: a record claimed by a dead*"'],
        "file": "src/shm/segment/directory.cpp",
        "changes": [
            ("    if (claimed == byte + 1) return number;  // directory.D4: a predecessor's, or this task's own from a lost race\n",
             ""),
        ],
    },
    "directory_claim_shared": {
        "breaks": "A record that another process has claimed is taken.",
        "rule": "directory.D4",
        "tests": ['directory "directory: *"'],
        "file": "src/shm/segment/directory.cpp",
        "changes": [
            ("    if (claimed == byte + 1) return number;  // directory.D4: a predecessor's, or this task's own from a lost race",
             "    if (claimed != 0) return number;  // directory.D4: a predecessor's, or this task's own from a lost race"),
        ],
    },
    "directory_dtype": {
        "breaks": "Another dtype is not reported as a disagreement.",
        "rule": "directory.D2",
        "tests": ['directory "directory: a record of another dtype*"'],
        "file": "src/shm/segment/directory.cpp",
        "changes": [
            ("  if (record.dtype != static_cast<std::uint32_t>(spec.dtype))",
             "  if (record.dtype == 0xffff)"),
        ],
    },
    "directory_full": {
        "breaks": "A part of a variable takes whatever space is left.",
        "rule": "directory.D2",
        "tests": ['directory "directory: a full one*"',
                  "many_variables"],
        "file": "src/shm/segment/directory.cpp",
        "changes": [
            ("  if (known.count() + wanted > kMaxVariables) fail_full();",
             "  static_cast<void>(wanted);"),
        ],
    },
    "directory_inplace_sync": {
        "breaks": "An in-place variable is accepted in sync mode.",
        "rule": "directory.D2",
        "tests": ['directory "directory: an in-place variable*"'],
        "file": "src/shm/segment/directory.cpp",
        "changes": [
            ("  if (layout == Layout::kInplace && ps_shm::traits_of(config.mode).needs_versioned)",
             "  if (layout == Layout::kInplace && config.workers == 0)"),
        ],
    },
    "directory_not_grown": {
        "breaks": "A variable is published before its shard has space for it.",
        "rule": "directory.D3",
        "tests": ["directory"],
        "file": "src/shm/segment/directory.cpp",
        "changes": [
            ("    job_.shard(record->shard).grow(record->shard_end);  // directory.D3\n",
             ""),
        ],
    },
    "directory_overwrites": {
        "breaks": "A process that publishes a record does not check whether its index is taken.",
        "rule": "directory.D1",
        "tests": ['interleavings "moments: a record that was published*"'],
        "file": "src/shm/segment/directory.cpp",
        "changes": [
            ("    if (!job_.index(position).try_exchange_acq_rel(found, number + 1)) continue;  // (directory.D1) pairs with at()",
             "    job_.index(position).store_release(number + 1 + found);  // (directory.D1) pairs with at()"),
        ],
    },
    "directory_second_look": {
        "breaks": "A declaring process does not check again after filling its record.",
        "rule": "directory.D1",
        "tests": ['directory "directory: threads that declare*"'],
        "survives": "if others have declared since, the exchange of the index fails, and the check follows",
        "file": "src/shm/segment/directory.cpp",
        "changes": [
            ("      continue;  // another task may have declared it since: its place depends on this reading\n",
             ""),
        ],
    },
    "directory_shape": {
        "breaks": "Another shape is not reported as a disagreement.",
        "rule": "directory.D2",
        "tests": ['directory "directory: a disagreement*"'],
        "file": "src/shm/segment/directory.cpp",
        "changes": [
            ('  if (theirs != yours) disagree(record, "shape", theirs, yours);',
             "  static_cast<void>(theirs), static_cast<void>(yours);"),
        ],
    },
    "gpu_chunks_by_size": {
        "breaks": "In a job for GPU workers, large variables have the chunks of other jobs, which a kernel pulls.",
        "rule": "chunks",
        "tests": ['chunks "chunks: for GPUs* values of*"', 'gpu_link "gpu link: in a job for GPUs*"'],
        "file": "src/shm/segment/placement.cpp",
        "changes": [("sizeof(float) >= kGpuChunkBytes) return", "sizeof(float) > 0) return")],
    },
    "gpu_chunks_of_any_variable": {
        "breaks": "In a job for GPU workers, small variables have large chunks, too.",
        "rule": "chunks",
        "tests": ['chunks "chunks: for GPUs* values of*"', 'gpu_link "gpu link: in a job for GPUs*"'],
        "file": "src/shm/segment/placement.cpp",
        "changes": [("record.elements * sizeof(float) < kLargeForGpu", "record.elements < 2")],
    },
    "gpu_chunks_of_any_dtype": {
        "breaks": "In a job for GPU workers, variables have large chunks whose dtype no link pulls.",
        "rule": "chunks",
        "tests": ['chunks "chunks: for GPUs* variables of which*"'],
        "file": "src/shm/segment/placement.cpp",
        "changes": [("array_dtype(record) != DType::kFloat32 || record", "record")],
    },
    "gpu_chunks_run_out": {
        "breaks": "In a job for GPU workers, a variable far into a shard has no larger buffers, as if a size were given.",
        "rule": "chunks",
        "tests": ['placement "placement: a small variable*"'],
        "file": "src/shm/segment/placement.cpp",
        "changes": [("if (is_size(job.config().chunk_bytes) ||", "if (job.config().chunk_bytes != 0 ||")],
    },
    "inplace_counted_first": {
        "breaks": "A push of a block is counted before it is made.",
        "rule": "inplace.P2",
        "tests": ['interleavings "interleavings: in-place elements*"'],
        "file": "src/shm/slots/inplace_slot.hpp",
        "changes": [
            ('''    for_rows(block, [&](std::byte* target, std::uint64_t begin, std::uint64_t count) {
      update_row(row_at(target, begin), gradient + begin, count, adds, update);
    });
    fault_point(FaultPoint::kInplaceBlock);
    return count_push(block);''',
             '''    const std::uint64_t before = count_push(block);
    for_rows(block, [&](std::byte* target, std::uint64_t begin, std::uint64_t count) {
      update_row(row_at(target, begin), gradient + begin, count, adds, update);
    });
    return before;'''),
        ],
    },
    "inplace_lost_update": {
        "breaks": "An element is stored without comparing its old value.",
        "rule": "inplace.P1",
        "tests": ['interleavings "interleavings: in-place elements*"'],
        "file": "src/shm/slots/inplace_elements.hpp",
        "changes": [
            ('''    if (__atomic_compare_exchange_n(word, &expected, desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
      return values[0];''',
             '''    __atomic_store_n(word, desired, __ATOMIC_RELAXED);
    return values[0];'''),
        ],
    },
    "inplace_pull_counts_last": {
        "breaks": "A pull of a block counts its pushes after the copy.",
        "rule": "inplace.P3",
        "tests": ['interleavings "interleavings: in-place elements*"'],
        "file": "src/shm/slots/inplace_slot.hpp",
        "changes": [
            ("    const std::uint64_t pushed = pushes(block);\n", ""),
            ("    return pushed;",
             "    return pushes(block);"),
        ],
    },
    "rows_bfloat16_same_bits": {
        "breaks": "All pushes of a row of bfloat16 are rounded by the same random bits.",
        "rule": "inplace.P7",
        "tests": ['bfloat16_rows "rows of bfloat16: the mean of many*"'],
        "file": "src/worker/row_access.cpp",
        "changes": [("shm::rounding_of_row(seed, id, rank_, pushes)", "shm::rounding_of_row(seed, id, rank_, pushes * 0)")],
    },
    "inplace_bfloat16_adds_to_nearest": {
        "breaks": "What is added to a variable of bfloat16 is rounded to nearest.",
        "rule": "inplace.P7",
        "tests": ['bfloat16_rows "rows of bfloat16: the mean of many*"'],
        "file": "src/worker/inplace_state.cpp",
        "changes": [
            ("    if (how == update::Change::kAdd)\n"
             "      return part.inplace->push_block(block, values, Adds::kExact, change, rounded(part, block));\n", ""),
        ],
    },
    "scalar_uncounted": {
        "breaks": "A push of a scalar is not counted.",
        "rule": "inplace.P4",
        "tests": ["scalar_word"],
        "file": "src/shm/slots/inplace_slot.hpp",
        "changes": [
            ("      if (shared.try_exchange_acq_rel(old, make_scalar(scalar_pushes(old) + 1, value))) break;  // (inplace.P4)",
             "      if (shared.try_exchange_acq_rel(old, make_scalar(scalar_pushes(old), value))) break;  // (inplace.P4)"),
        ],
    },
    "scalar_unlooked": {
        "breaks": "A push of a scalar does not compare the value that it replaces.",
        "rule": "inplace.P4",
        "tests": ["scalar_word"],
        "file": "src/shm/slots/inplace_slot.hpp",
        "changes": [
            ("      if (shared.try_exchange_acq_rel(old, make_scalar(scalar_pushes(old) + 1, value))) break;  // (inplace.P4)",
             '''      shared.store_release(make_scalar(scalar_pushes(old) + 1, value));
      break;  // (inplace.P4)'''),
        ],
    },
    "data_named_first": {
        "breaks": "Data has its name before it is complete.",
        "rule": "data.D3",
        "tests": ["shared_data"],
        "file": "src/shm/segment/shared_data.cpp",
        "changes": [
            ("  segment.publish();  // before it has a name: no process finds it incomplete\n",
             ""),
        ],
    },
    "data_of_another_instance": {
        "breaks": "Data of an earlier job of the same name is used.",
        "rule": "data.D3",
        "tests": ['shared_data "shared data: what an earlier*"'],
        "file": "src/shm/segment/shared_data.cpp",
        "changes": [
            ("  if (segment.header().instance != job.instance()) return std::nullopt;  // data.D3\n",
             ""),
        ],
    },
    "data_of_another_key": {
        "breaks": "Data with another key is used.",
        "rule": "data.D3",
        "tests": ['shared_data "shared data: keys*"'],
        "file": "src/shm/segment/shared_data.cpp",
        "changes": [
            ("  return found.key_bytes == key.size() &&",
             "  return"),
        ],
    },
    "data_of_any_size": {
        "breaks": "Truncated data is used.",
        "rule": "data.D3",
        "tests": ['shared_data "shared data: damaged data*"'],
        "file": "src/shm/segment/shared_data.cpp",
        "changes": [
            ('''  if (usable < kSharedDataOffset || data.record().bytes != usable - kSharedDataOffset ||
      data.segment_.header().initial_bytes != usable)''',
             "  if (usable < kSharedDataOffset)"),
        ],
    },
    "recovery_alone": {
        "breaks": "Dead ranks that are in doubt about the same buffers are not recovered together.",
        "rule": "slot.V6",
        "tests": ["free_buffers",
                  'interleavings "interleavings: two writers die*"'],
        "file": "src/shm/slots/recovery.cpp",
        "changes": [
            ("      if (!locks.try_take(kRankByte + other)) break;  // alive: it will note its buffer itself",
             "      if (other < job.ranks()) break;  // alive: it will note its buffer itself"),
        ],
    },
    "recovery_completes_one_chunk": {
        "breaks": "Of the chunks that a dead rank was changing in place, one is completed.",
        "rule": "slot.V14",
        "tests": ['interleavings "single-writer: a push that is killed while each*"'],
        "file": "src/shm/slots/recovery.cpp",
        "changes": [
            ("      for (const Doubt& doubt : doubts) census.complete_in_place(doubt);",
             "      if (!doubts.empty()) census.complete_in_place(doubts.front());"),
        ],
    },
    "recovery_believes_in_flight": {
        "breaks": "A recovering process takes a record in flight as proof of a buffer's owner.",
        "rule": "slot.V6",
        "tests": ["free_buffers",
                  'interleavings "interleavings: two writers die*"'],
        "file": "src/shm/slots/recovery.cpp",
        "changes": [
            ("        if (!is_in_flight(record) && free_buffer_of(record, *variables_[0], lane, which) == buffer) return true;",
             "        if (free_buffer_of(record, *variables_[0], lane, which) == buffer) return true;"),
        ],
    },
    "recovery_forgets_forks": {
        "breaks": "A recovering process does not check which buffers are kept as pre-images.",
        "rule": "snapshot.C6",
        "tests": ['free_buffers "recovering: *a snapshot point keeps*"'],
        "file": "src/shm/slots/recovery.cpp",
        "changes": [
            ("        if (buffer_of(word(*variable, chunk)) == buffer || chunks.kept_by(chunk) == buffer) return true;",
             "        if (buffer_of(word(*variable, chunk)) == buffer) return true;"),
        ],
    },
    "recovery_guesses": {
        "breaks": "A recovering process that finds no reference to the buffer assumes that it was swapped.",
        "rule": "slot.V6",
        "tests": ['interleavings "interleavings: two writers die*"'],
        "file": "src/shm/slots/recovery.cpp",
        "changes": [
            ("    return Fate::kUnknown;",
             "    return Fate::kSwapped;"),
        ],
    },
    "recovery_ignores_word": {
        "breaks": "The recovering process does not check the noted word.",
        "rule": "slot.V6",
        "tests": ['interleavings "interleavings: two writers die*"'],
        "survives": "a word that is still the noted one names the gain, by itself or by its header, which says the same",
        "file": "src/shm/slots/recovery.cpp",
        "changes": [
            ("      if (word(*variable, doubt.chunk - variable->first_chunk) == doubt.word) return Fate::kNotSwapped;",
             "      if (word(*variable, doubt.chunk - variable->first_chunk) == doubt.word) break;"),
        ],
    },
    "recovery_keeps_taken": {
        "breaks": "A process that recovers several ranks together keeps the bytes of the dead.",
        "rule": "slot.V6",
        "tests": ["free_buffers",
                  'interleavings "interleavings: two writers die*"'],
        "file": "src/shm/slots/recovery.cpp",
        "changes": [
            ("  for (const std::uint32_t other : taken) locks.release(kRankByte + other);\n",
             ""),
        ],
    },
    "recovery_one_round": {
        "breaks": "A recovered record decides nothing about those before it.",
        "rule": "slot.V6",
        "tests": ["free_buffers",
                  'interleavings "interleavings: two writers die*"'],
        "file": "src/shm/slots/recovery.cpp",
        "changes": [
            ("    if (open.empty() || open.size() == doubts.size()) return open;",
             "    return open;"),
        ],
    },
    "recovery_takes_the_living": {
        "breaks": "Joint recovery does not take the bytes of the ranks whose buffers it recovers.",
        "rule": "slot.V6",
        "tests": ["free_buffers",
                  'interleavings "interleavings: a writer dies at any access while*"'],
        "file": "src/shm/slots/recovery.cpp",
        "changes": [
            ("      if (!locks.try_take(kRankByte + other)) break;  // alive: it will note its buffer itself\n",
             ""),
        ],
    },
    "recovery_uninitialised": {
        "breaks": "A recovering process reads the words of variables without initial values.",
        "rule": "directory.D6",
        "tests": ["free_buffers",
                  'interleavings "interleavings: two writers die*"'],
        "survives": "a word without an initial value refers to buffer 0, which holds the words and has no owner",
        "file": "src/shm/slots/recovery.cpp",
        "changes": [
            (''' && is_versioned(variable) &&
          variable.init.load_acquire() == kInitialised)  // (directory.D6) its words name buffers''',
             " && is_versioned(variable))  // (directory.D6) its words name buffers"),
        ],
    },
    "recovery_wrong_way": {
        "breaks": "A free buffer whose swap was lost is considered swapped, and vice versa.",
        "rule": "slot.V6",
        "tests": ["free_buffers"],
        "file": "src/shm/slots/recovery.cpp",
        "changes": [
            ("  const std::uint64_t owned = fate == Fate::kSwapped ? doubt.gain : doubt.free_buffer;",
             "  const std::uint64_t owned = fate == Fate::kSwapped ? doubt.free_buffer : doubt.gain;"),
        ],
    },
    "free_buffer_unchecked": {
        "breaks": "The number of a buffer that a list of free buffers names is followed beyond the shard.",
        "rule": "slot.S1",
        "tests": ['versioned_slot "versioned slot: no number of a buffer*"'],
        "file": "src/shm/slots/free_buffers.hpp",
        "changes": [
            ("      if (!has_buffer(shard, buffer, variable.buffer_class)) [[unlikely]]\n",
             "      if (buffer > kBufferMask) [[unlikely]]\n"),
        ],
    },
    "free_buffer_forgets_gain": {
        "breaks": "After a successful swap the free buffer that is now current is kept.",
        "rule": "slot.V5",
        "tests": ['interleavings "interleavings: a writer dies at any access while*"'],
        "file": "src/shm/slots/free_buffers.hpp",
        "changes": [
            ("    free_buffer.shared->record.store_release(kValidFreeBuffer | gain);  // (slot.S2) slot.V5: both in one store",
             "    free_buffer.shared->record.store_release(kValidFreeBuffer | (gain != 0 ? free_buffer.buffer : gain));  // (slot.S2) slot.V5: both in one store"),
        ],
    },
    "free_buffer_lost_stays_in_flight": {
        "breaks": "After a lost swap the free buffer stays in flight.",
        "rule": "slot.S2",
        "tests": ['free_buffers "free buffers: *"'],
        "file": "src/shm/slots/free_buffers.hpp",
        "changes": [
            ("    free_buffer.shared->record.store_release(kValidFreeBuffer | free_buffer.buffer);  // (slot.S2)",
             "    free_buffer.shared->record.store_release(kValidFreeBuffer | kFreeBufferInFlight | free_buffer.buffer);  // (slot.S2)"),
        ],
    },
    "free_buffer_not_in_flight": {
        "breaks": "A free buffer that is being filled is not recorded as in flight.",
        "rule": "slot.V5",
        "tests": ['interleavings "interleavings: a writer dies at any access while*"'],
        "file": "src/shm/slots/free_buffers.hpp",
        "changes": [
            ("      shared.record.store_release(kValidFreeBuffer | kFreeBufferInFlight | buffer);  // (slot.S1) the note is complete",
             "      shared.record.store_release(kValidFreeBuffer | buffer);  // (slot.S1) the note is complete"),
        ],
    },
    "damage_conservation": {
        "breaks": "A joining worker does not check whether a buffer is in use twice.",
        "rule": "slot.V5",
        "tests": ['validation "damage: *twice*"'],
        "file": "src/shm/checks/validation.cpp",
        "changes": [
            ("    check_conservation();",
             "    static_cast<void>(&ClassCheck::check_conservation);"),
        ],
    },
    "damage_doubt": {
        "breaks": "A free buffer in flight whose two buffers are both held is accepted.",
        "rule": "slot.V5",
        "tests": ['validation "damage: *twice*"'],
        "file": "src/shm/checks/validation.cpp",
        "changes": [
            ("      if (free_buffer != nullptr && gain != nullptr && stays([&] {",
             "      if (free_buffer != nullptr && gain == free_buffer && stays([&] {"),
        ],
    },
    "damage_far_ahead": {
        "breaks": "A barrier entry that is far ahead is accepted.",
        "rule": "barrier.B6",
        "tests": ["validation"],
        "file": "src/shm/checks/validation.cpp",
        "changes": [
            ('    require(latest == 0 || latest - 1 <= round, "an entry for a step that is far ahead");',
             "    static_cast<void>(latest), static_cast<void>(round);"),
        ],
    },
    "damage_gain": {
        "breaks": "A gain that is not a buffer of its class is accepted.",
        "rule": "slot.V5",
        "tests": ["validation"],
        "file": "src/shm/checks/validation.cpp",
        "changes": [
            ("    if (record != 0 && (!is_possible || !has(buffer_of(record)) || (is_in_flight(record) && !has(gain))))",
             "    if (record != 0 && (!is_possible || !has(buffer_of(record)) || false))"),
        ],
    },
    "damage_generation": {
        "breaks": "A gradient segment without an owner is accepted.",
        "rule": "barrier.G1",
        "tests": ["validation"],
        "file": "src/shm/checks/validation.cpp",
        "changes": [
            ('    require((generation & kHolderMask) <= holders, "a gradient segment without an owner");',
             "    static_cast<void>(generation), static_cast<void>(holders);"),
        ],
    },
    "damage_kept": {
        "breaks": "A buffer that is kept as pre-image is not checked.",
        "rule": "snapshot.C6",
        "tests": ["validation"],
        "file": "src/shm/checks/validation.cpp",
        "changes": [
            ("        if (const std::uint64_t kept = preserved_buffer(record, chunk, preimage); kept != 0) {",
             "        if (const std::uint64_t kept = preserved_buffer(record, chunk, preimage); kept == ~std::uint64_t{0}) {"),
        ],
    },
    "damage_meeting_decided": {
        "breaks": "A decision about a user barrier is accepted.",
        "rule": "barrier.A4",
        "tests": ["validation"],
        "file": "src/shm/checks/validation.cpp",
        "changes": [
            ('  if (which == 1) return require(decision == 0, "a decision, although it is the user barrier");',
             "  if (which == 1) return;"),
        ],
    },
    "damage_once": {
        "breaks": "A variable that is declared meanwhile makes a sound job appear damaged.",
        "rule": "directory.D1",
        "tests": ['interleavings "moments: a chunk whose*"'],
        "file": "src/shm/checks/validation.cpp",
        "changes": [
            ("      if (directory.count() == records.size()) throw;",
             "      throw;"),
        ],
    },
    "damage_other_round": {
        "breaks": "A decision about another round is accepted.",
        "rule": "barrier.B3",
        "tests": ["validation"],
        "file": "src/shm/checks/validation.cpp",
        "changes": [
            ('  require(decided >= before && decided <= after + 1, "a decision that is not about the step under way");',
             "  static_cast<void>(before);"),
        ],
    },
    "damage_proposer": {
        "breaks": "A proposer that does not exist is accepted.",
        "rule": "barrier.B3",
        "tests": ["validation"],
        "file": "src/shm/checks/validation.cpp",
        "changes": [
            ('  require(decision == 0 || proposer < job.ranks(), "a proposer that does not exist");',
             "  if (proposer >= job.ranks()) return;"),
        ],
    },
    "damage_settings": {
        "breaks": "Invalid runtime settings are accepted.",
        "rule": "settings.S2",
        "tests": ["validation"],
        "file": "src/shm/checks/validation.cpp",
        "changes": [
            ("  check_live(job);",
             "  static_cast<void>(check_live);"),
        ],
    },
    "damage_free_buffer": {
        "breaks": "A free buffer that is not in its class is accepted.",
        "rule": "slot.V5",
        "tests": ["validation"],
        "file": "src/shm/checks/validation.cpp",
        "changes": [
            ("    if (record != 0 && (!is_possible || !has(buffer_of(record)) || (is_in_flight(record) && !has(gain))))",
             "    if (record != 0 && !is_possible)"),
        ],
    },
    "damage_stamp": {
        "breaks": "A chunk whose stamp differs from its word is accepted.",
        "rule": "slot.V1",
        "tests": ["validation"],
        "file": "src/shm/checks/validation.cpp",
        "changes": [
            ("      if (shared.load_acquire() == word)  // (slot.R1)",
             '''      if (shared.load_acquire() == word) return;  // (slot.R1)
      if (word == 1)'''),
        ],
    },
    "damage_unproposed": {
        "breaks": "A decision without a proposal is accepted.",
        "rule": "barrier.B3",
        "tests": ["validation"],
        "file": "src/shm/checks/validation.cpp",
        "changes": [
            ('  require(decided != after + 1 || proposal == decided, "a decision that nobody has proposed");',
             "  static_cast<void>(proposal);"),
        ],
    },
    "damage_word": {
        "breaks": "A chunk whose word names no buffer of its class is accepted.",
        "rule": "slot.V1",
        "tests": ["validation"],
        "file": "src/shm/checks/validation.cpp",
        "changes": [
            ('''      if (!has(buffer_of(word)))
        fail(fmt::format("chunk {} of variable '{}' names no buffer of its class", chunk, text_of(record.name)));
''',
             ""),
        ],
    },
    "damage_worker": {
        "breaks": "An invalid entry of the worker table is accepted.",
        "rule": "ranks.J1",
        "tests": ["validation"],
        "file": "src/shm/checks/validation.cpp",
        "changes": [
            ("  check_workers(job);",
             "  static_cast<void>(check_workers);"),
        ],
    },
    "chunk_buffer_unchecked": {
        "breaks": "The number of a buffer that a chunk names is followed beyond the shard.",
        "rule": "slot.V1",
        "tests": ['versioned_slot "versioned slot: no number of a buffer*"'],
        "file": "src/shm/slots/chunk_buffers.hpp",
        "changes": [
            ("    if (!has_buffer(*shard_, buffer, buffer_class_)) [[unlikely]]\n",
             "    if (buffer > kBufferMask) [[unlikely]]\n"),
        ],
    },
    "contribute_unchecked": {
        "breaks": "A contributor trusts the header of a buffer that is being reused.",
        "rule": "slot.V4",
        "tests": ['interleavings "interleavings: a contributor whose*"'],
        "file": "src/shm/slots/versioned_slot.hpp",
        "changes": [
            ('''      if (!is_whole(buffer, chunk, old)) continue;  // slot.V4
      if (summed > label.step + 1) return ContributeResult::kTooLate;''',
             "      if (summed > label.step + 1) return ContributeResult::kTooLate;"),
        ],
    },
    "contribution_too_late": {
        "breaks": "A late contribution replaces the sum of a later step.",
        "rule": "barrier.B9",
        "tests": ['accumulator "accumulator: too late*"'],
        "file": "src/shm/slots/versioned_slot.hpp",
        "changes": [
            ("      if (summed > label.step + 1) return ContributeResult::kTooLate;\n",
             ""),
        ],
    },
    "contribution_twice": {
        "breaks": "A successor adds again what its predecessor has added.",
        "rule": "barrier.B9",
        "tests": ['accumulator "accumulator: a successor*"'],
        "file": "src/shm/slots/versioned_slot.hpp",
        "changes": [
            ("      if (contributors.contains(label.rank) && !again) return ContributeResult::kAlreadyIn;",
             "      if (contributors.contains(label.rank) && again) return ContributeResult::kAlreadyIn;"),
        ],
    },
    "fork_again": {
        "breaks": "A push copies a chunk again for a snapshot point for which it already has a pre-image.",
        "rule": "snapshot.C6",
        "tests": ['interleavings "interleavings: two writers after a snapshot point*"'],
        "file": "src/shm/slots/versioned_slot.hpp",
        "changes": [
            ("      if (preimage_epoch(preimage) < label.epoch) {",
             "      if (preimage_epoch(preimage) <= label.epoch && label.epoch != 0) {"),
        ],
    },
    "fork_unchecked": {
        "breaks": "A push trusts the pre-image of a buffer that is being reused.",
        "rule": "snapshot.C5",
        "tests": ['interleavings "moments: a push notes no buffer*"'],
        "file": "src/shm/slots/versioned_slot.hpp",
        "changes": [
            ("        if (!is_whole(in, chunk, old)) return false;  // another chunk's: its buffer must not be noted\n",
             ""),
        ],
    },
    "image_unchecked": {
        "breaks": "A reader of a pre-image that is the current buffer does not check the stamp again.",
        "rule": "snapshot.C9",
        "tests": ['interleavings "interleavings: *snapshot point*"',
                  'weak_weak "weak: slots*"'],
        "survives": "only a push that the snapshot maker has given up on could overwrite it, and no scene has one",
        "file": "src/shm/slots/versioned_slot.hpp",
        "changes": [
            ("      if (has_preimage || is_whole(buffer, chunk, word)) return version;",
             "      return version;"),
        ],
    },
    "slot_no_stamp_check": {
        "breaks": "Any complete stamp is accepted.",
        "rule": "slot.R3",
        "tests": ['interleavings "interleavings: a writer cycles through its free buffers while a reader sleeps"'],
        "file": "src/shm/slots/chunk_buffers.hpp",
        "changes": [
            ("    return buffer.stamp.load_relaxed() == stamp_of(chunk, word);",
             "    return buffer.stamp.load_relaxed() != kBuilding || word == 0 || chunk == ~std::uint64_t{0};"),
        ],
    },
    "slot_not_building": {
        "breaks": "A buffer that is being built is not marked as such.",
        "rule": "slot.V2",
        "tests": ['interleavings "interleavings: a writer cycles through its free buffers while a reader sleeps"'],
        "file": "src/shm/slots/versioned_slot.hpp",
        "changes": [
            ("    out.stamp.store_relaxed(kBuilding);  // (slot.W3)\n",
             ""),
        ],
    },
    "slot_stamp_without_chunk": {
        "breaks": "Only the version is compared.",
        "rule": "slot.V1",
        "tests": ['interleavings "interleavings: two chunks exchange their buffers"'],
        "file": "src/shm/slots/chunk_buffers.hpp",
        "changes": [
            ("    return buffer.stamp.load_relaxed() == stamp_of(chunk, word);",
             "    return ((buffer.stamp.load_relaxed() ^ stamp_of(chunk, word)) & kVersionMask) == 0;"),
        ],
    },
    "step_applied_again": {
        "breaks": "A helper does not check whether the chunk includes the step.",
        "rule": "barrier.B5",
        "tests": ['interleavings "interleavings: two helpers*"'],
        "file": "src/shm/slots/versioned_slot.hpp",
        "changes": [
            ("      if (included > step) return StepResult::kAlreadyIncluded;\n",
             ""),
        ],
    },
    "swap_unchecked": {
        "breaks": "A swap does not compare the word that it replaces.",
        "rule": "slot.W6",
        "tests": ['interleavings "interleavings: two writers and a reader of one float"'],
        "file": "src/shm/slots/versioned_slot.hpp",
        "changes": [
            ("    if (words_[chunk].word.try_exchange_acq_rel(old, next)) {  // (slot.W6) pairs with slot.W1, slot.R1",
             "    if (words_[chunk].word.store_release(next); true) {"),
        ],
    },
    "undo_in_snapshot": {
        "breaks": "A push changes a chunk in place that belongs to a snapshot.",
        "rule": "slot.U1",
        "tests": ['single_writer "single-writer: a snapshot*"'],
        "file": "src/shm/slots/single_writer_chunk.hpp",
        "changes": [
            ("    if (preimage_epoch(preimage) < label.epoch && preserved_buffer(variable_, chunk, preimage) != 0) return {};\n",
             "    if (preimage_epoch(preimage) < label.epoch && variable_.base != 0) return {};\n"),
        ],
    },
    "undo_kept_unseen": {
        "breaks": "The buffer that a chunk preserves counts as lost while the chunk is changed in place.",
        "rule": "slot.V9",
        "tests": ['interleavings "single-writer: a push that is killed*"'],
        "file": "src/shm/slots/versioned_slot.hpp",
        "changes": [
            ("is_whole(buffer, chunk, word) || is_changing_still(chunk, word)\n", "is_whole(buffer, chunk, word)\n"),
        ],
    },
    "undo_one_half": {
        "breaks": "The undo log has room for one block.",
        "rule": "slot.U3",
        "tests": ['interleavings "single-writer: a push that is killed*"'],
        "file": "src/shm/base/undo_log.hpp",
        "changes": [
            ("room + at / kBlock % 2 * kBlock * arrays", "room + at * arrays % 1"),
        ],
    },
    "undo_slots_forgotten": {
        "breaks": "A successor takes back the values of a block, and not its slots.",
        "rule": "slot.U6",
        "tests": ['interleavings "single-writer: a push that is killed*"'],
        "file": "src/shm/slots/single_writer_chunk.hpp",
        "changes": [
            ("      for (std::uint64_t array = 0; array < arrays(); ++array)\n        put_back(",
             "      for (std::uint64_t array = 0; array < 1; ++array)\n        put_back("),
        ],
    },
    "undo_stamp_before_word": {
        "breaks": "The stamp of a new version is stored before its word.",
        "rule": "slot.U4",
        "tests": ['interleavings "single-writer: a push that is killed*"'],
        "file": "src/shm/slots/single_writer_chunk.hpp",
        "changes": [
            ("    std::uint64_t expected = old;\n    // (slot.U4)",
             "    std::uint64_t expected = old;\n    buffer.stamp.store_relaxed(stamp_of(chunk, next));\n    // (slot.U4)"),
        ],
    },
    "undo_unchecked": {
        "breaks": "A reader beside an update in place does not look at the mark again.",
        "rule": "slot.U5",
        "tests": ['PS_SHM_WEAK_SCENE="in place" weak_weak "weak: slots*"'],
        "file": "src/shm/slots/single_writer_chunk.hpp",
        "changes": [
            ("    return log.mark->load_acquire() == mark && buffer", "    return buffer"),
        ],
    },
    "undo_counts_as_current": {
        "breaks": "A copy of blocks of two versions counts as the current version.",
        "rule": "slot.U5",
        "tests": ['PS_SHM_WEAK_SCENE="in place" weak_weak "weak: slots*"'],
        "file": "src/shm/slots/versioned_slot.hpp",
        "changes": [
            ("      if (try_pull_changing(chunk, word, out, array)) return (version_of(word) - 1) & kVersionMask;",
             "      if (try_pull_changing(chunk, word, out, array)) return version_of(word);"),
        ],
    },
    "undo_while_uncertain": {
        "breaks": "Several workers may change a chunk in place.",
        "rule": "slot.U1",
        "tests": ['single_writer "single-writer: needs*"'],
        "file": "src/config/job_settings.cpp",
        "changes": [
            ("  if (ranks_of(config) != 1 ||", "  if (ranks_of(config) == 0 ||"),
        ],
    },
    "use_sum_unchecked_behind": {
        "breaks": "The stamp is not checked after a sum was used.",
        "rule": "barrier.B9",
        "tests": ['interleavings "interleavings: sums agree*"'],
        "file": "src/shm/slots/versioned_slot.hpp",
        "changes": [
            ("    return is_whole(buffer, chunk, word);",
             "    return true;"),
        ],
    },
}
