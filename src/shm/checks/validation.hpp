// Checks whether the contents of a job's segments are possible. A process that attaches checks once, before it uses
// anything. Nothing here trusts a byte, or reads outside of a segment's file.
//
// Workers check a job after they have taken their lock byte, ps tasks when they take a shard over. From then on no
// process removes the job, and later changes come from live peers, which processes of one job trust. The inspector has
// no lock; it reads copies of records and checks them each time.
//
// What is checked: headers; settings, by the rules of ps_shm::check; the index; each record, which apart from name,
// shape and rule is a function of the settings and the records before it (directory.D2) and must match it; the words,
// stamps and free-buffer records of chunks, which must lead to a buffer of their own class; the runtime settings;
// barriers and worker entries. Values, counters and diagnostic texts may be anything.
//
// All functions throw Error: "/dev/shm/ps_shm.JOB is damaged: what; what to do".
#pragma once

#include "shm/segment/job_segments.hpp"

namespace ps_shm::shm {

// Checks what a worker relies on and attaching and copy_records() have not checked. Requires: a lock byte is held.
// Lock-free.
void check_job(JobSegments& job);

}  // namespace ps_shm::shm
