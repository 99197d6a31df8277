// What inspect_shm finds out, as JSON, and the same as text that fits. docs/inspector.md lists what writes; all else maps
// read-only.
//
// All functions throw Error with one line that says what to do.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ps/errors.hpp"
#include "report/terminal.hpp"

namespace ps::inspect {

using Json = nlohmann::ordered_json;
using report::Columns;

// The job meant by somebody who named none: the only one there is.
std::string only_job();

// Every job and publication of this machine, whatever its state or version.
Json list_jobs();
std::string jobs_as_text(const Json& jobs, Columns columns);

// Every publication of this machine, or `only` that one: its newest generation, its subscribers and what they hold.
Json list_publications(const std::string& only);
std::string publications_as_text(const Json& listed, Columns columns);

// Settings, segments and step state.
Json show_job(const std::string& job);

// Whether people look for a setting of show_job(): it is a common one, or is not as it is where nobody gives it.
bool is_of_interest(const std::string& key, const Json& value);

// Where room is limited, of the settings those of interest.
std::string job_as_text(const Json& shown, Columns columns);

Json list_variables(const std::string& job);
std::string variables_as_text(const Json& listed, Columns columns);

// The names of those that nobody has initialised yet.
Json list_uninitialised(const std::string& job);
std::string uninitialised_as_text(const Json& listed, Columns columns);

// Where each of them, or each part of one, is.
Json list_placement(const std::string& job);
std::string placement_as_text(const Json& listed, Columns columns);

Json list_workers(const std::string& job);
std::string workers_as_text(const Json& listed, Columns columns);

// What has happened, oldest first; of one kind, if that is not empty.
Json list_events(const std::string& job, const std::string& kind);
std::string events_as_text(const Json& listed, Columns columns);

// The same one by one as they happen, until nobody is alive in the job or it is removed. A ring keeps the newest: of more
// than a thousand decisions within 50 ms some are missed.
void follow_events(const std::string& job, const std::string& kind, const std::function<void(const Json&)>& use);

// A KEY=VALUE that can't be read.
class BadUsage : public Error {
  using Error::Error;
};

// The names of the settings that can be changed, with commas in between.
std::string live_names();

// Changes a running job's settings (ps/job_control.hpp), each given as KEY=VALUE. The job is this user's, or of `group`.
Json change_settings(const std::string& job, const std::string& group, const std::vector<std::string>& changes);
std::string changes_as_text(const Json& changes, Columns columns);

// What of the variables is asked for.
struct DumpRequest {
  std::vector<std::string> names;  // none: all variables
  std::string slice;               // of one variable, as numpy writes it: 0:10,3
  std::uint64_t limit = 0;         // how many values; 0: all
};

// Statistics and the first values.
Json dump_values(const std::string& job, const DumpRequest& request);

// Writes each initialised variable of these names, or all, with its slots and average to `folder`, and an index.json
// that names the files.
Json dump_files(const std::string& job, const std::vector<std::string>& names, const std::string& folder);

// Writes one variable, or its slice, to a file.
Json dump_file(const std::string& job, const DumpRequest& request, const std::string& file);
std::string values_as_text(const Json& dumped, Columns columns);

// Statistics and a histogram of variables; of large ones of about `sample` elements (0: all).
Json sum_up(const std::string& job, const std::vector<std::string>& names, std::uint64_t sample);
std::string statistics_as_text(const Json& found, Columns columns);

// How two states differ. Each is a job, JOB@snapshot (all of it at one moment; maps the job writable, of `group`), the
// folder of a checkpoint, or one with several: the newest.
Json find_differences(const std::string& a, const std::string& b, const std::string& group);
std::string difference_as_text(const Json& found, Columns columns);

// What this machine offers to jobs, its GPUs too, and what is wrong (`findings`). Of every job, or `only` that one: its
// last state, and whether it can be reclaimed. `repair`: reclaims those that can; never one that is alive or was kept on
// purpose.
Json examine(const std::string& only, bool repair);
// Adds to what examine() has found who has pushed the first NaN to a job, or does within so many seconds. Ends as soon as
// that is known, or the job ends.
void watch_for_nan(const std::string& job, double seconds, Json& examined);
std::string examination_as_text(const Json& examined, Columns columns);

// What a Prometheus server scrapes.
struct MetricsRequest {
  std::string job;          // empty: all jobs, and publications
  std::string textfile;     // empty: none
  bool has_values = false;  // norms of variables, too, which costs reading some of them
  bool is_openmetrics = false;
};
Json gather_metrics(const MetricsRequest& request);
std::string metrics_as_text(const Json& gathered, Columns columns);

// Answers HTTP GET /metrics until SIGINT or SIGTERM; `begun` is called when it does. Port 0: any free one.
void serve_metrics(const MetricsRequest& request, const std::string& address, std::uint16_t port,
                   const std::function<void(const std::string& url)>& begun);

// Removes the segments of a job that nobody holds a lock of. `force`: also where its control segment is damaged, of
// another version or missing, and all names that begin as the job's do.
Json remove(const std::string& job, bool force);

// Removes a publication that nobody holds a lock of. `force`: also where it is damaged or of another version.
Json remove_publication(const std::string& name, bool force);

// Adds the publications to what examine() has found, or to what it has reclaimed.
void examine_publications(bool repair, Json& found);

// Removes every job and publication that examine() would reclaim.
Json remove_dead();
std::string removal_as_text(const Json& removed, Columns columns);

}  // namespace ps::inspect
