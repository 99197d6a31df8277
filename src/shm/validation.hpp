// Whether what a job's segments say is possible: looked at once, by whoever attaches, before anything is used. Nothing
// here trusts a byte, or reads outside of a segment's file.
//
// Workers check a job when they have taken their lock byte, ps tasks when they take a shard over: from then on nobody
// removes it, and what changes later comes from living peers, which processes of one job trust. The inspector, which
// has no lock, reads copies of records and checks them at every look.
//
// What is checked: headers; settings, by the rules of ps::check; the index; each record, which but for name, shape and
// rule is a function of the settings and the records before it (directory.D2) and must be just that; the words, stamps
// and spares of chunks, which lead to a buffer of their own class; the live settings; barriers and worker entries.
// Values, counters and texts for people may be anything.
//
// All throw Error: "/dev/shm/ps.JOB is damaged: what; what to do".
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shm/job_segments.hpp"

namespace ps::shm {

[[noreturn]] void fail_damaged(const std::string& segment, const std::string& what);

// A private copy of a record, so that what was checked stays as it was; `init` as it is at that moment.
using CheckedRecord = std::unique_ptr<VariableShm>;

// The control segment's header, and the settings that never change. Requires: it is mapped, of this build.
void check_settings(const JobSegments& job);

// All records of the directory, in its order. Lock-free.
std::vector<CheckedRecord> copy_records(JobSegments& job);

// Everything else that a worker goes by. Requires: a lock byte is held; lock-free.
void check_job(JobSegments& job);

}  // namespace ps::shm
