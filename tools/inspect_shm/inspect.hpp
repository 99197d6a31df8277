// The results of inspect_shm, as JSON and as fitted text. docs/inspector.md lists what writes; all other commands map
// read-only.
//
// All functions throw Error with one line that includes a remedy.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "report/terminal.hpp"

namespace ps_shm::inspect {

using Json = nlohmann::ordered_json;
using report::Columns;

// null for NaN and infinities, which JSON does not have.
inline Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

// The job to use if none was named: the only one that exists.
std::string only_job();

// All jobs and publications of this machine, whatever their state or version.
Json list_jobs();
std::string jobs_as_text(const Json& jobs, Columns columns);

// All publications of this machine, or only `only`: newest generation, subscribers, and the generations they hold.
Json list_publications(const std::string& only);
std::string publications_as_text(const Json& listed, Columns columns);

// Settings, segments and step state.
Json show_job(const std::string& job);

// Whether a setting of show_job() is of general interest: it is a common one, or differs from its default.
bool is_of_interest(const std::string& key, const Json& value);

// With limited space, only the settings of general interest.
std::string job_as_text(const Json& shown, Columns columns);

// Row size, rule, how many rows there are, and the table's counters.
Json facts_of(const TableInfo& table);

// A table by key: its counters, what a sample of its rows shows, and what happens to it within a second.
Json show_table(const std::string& job, const std::string& name);
std::string table_as_text(const Json& shown, Columns columns);

// Variables and tables.
Json list_variables(const std::string& job);
std::string tables_as_text(const Json& tables, Columns columns);
std::string variables_as_text(const Json& listed, Columns columns);

// The names of variables that are not initialised yet.
Json list_uninitialised(const std::string& job);
std::string uninitialised_as_text(const Json& listed, Columns columns);

// The location of each variable, or of each of its parts.
Json list_placement(const std::string& job);
std::string placement_as_text(const Json& listed, Columns columns);

Json list_workers(const std::string& job);
std::string workers_as_text(const Json& listed, Columns columns);

// The events, oldest first; only of one kind, if that is not empty.
Json list_events(const std::string& job, const std::string& kind);
std::string events_as_text(const Json& listed, Columns columns);

// The same one by one as they happen, until no process of the job is alive or it is removed. The events are in a ring:
// if there are more than a thousand decisions within 50 ms, some are missed.
void follow_events(const std::string& job, const std::string& kind, const std::function<void(const Json&)>& use);

// An argument that cannot be parsed, or does not suit the others.
class BadUsage : public Error {
  using Error::Error;
};

// The names of the settings that can be changed, separated by commas.
std::string live_names();

// Changes a running job's settings (ps_shm/job_control.hpp), given as KEY=VALUE. The job is this user's, or of `group`.
Json change_settings(const std::string& job, const std::string& group, const std::vector<std::string>& changes);
std::string changes_as_text(const Json& changes, Columns columns);

// Selects what to dump.
struct DumpRequest {
  std::vector<std::string> names;  // of variables or tables; none: all variables
  std::string slice;               // of one variable, in numpy notation: 0:10,3
  std::uint64_t limit = 0;         // how many values, or rows of a table; 0: all
};

// Statistics and the first values.
Json dump_values(const std::string& job, const DumpRequest& request);

// Writes each initialised variable and each table of these names, or all, to `folder`: variables with their slots and
// average, tables with their keys; and an index.json that lists the files.
Json dump_files(const std::string& job, std::vector<std::string> names, const std::string& folder);

// Writes one variable, or its slice, to a file; or the rows of a table, and its keys to another one, FILE.keys.npy.
Json dump_file(const std::string& job, const DumpRequest& request, const std::string& file);
std::string values_as_text(const Json& dumped, Columns columns);

// The keys and rows of a table, at most `limit`; 0: all.
Json dump_table(const JobView& view, const TableInfo& table, std::uint64_t limit);
std::string table_rows_as_text(const Json& table);

// All rows of a table, in the order of their keys.
struct TableContents {
  std::vector<std::uint64_t> keys;
  std::vector<float> values;  // of the rows, one after the other
};
TableContents contents_of(const JobView& view, const std::string& table);

// Statistics and a histogram of variables; large ones are sampled with about `sample` elements (0: all).
Json sum_up(const std::string& job, const std::vector<std::string>& names, std::uint64_t sample);
std::string statistics_as_text(const Json& found, Columns columns);

// The differences of two states. Each is a job, JOB@snapshot (a consistent snapshot; maps a job of `group` writable),
// the folder of a checkpoint, or a folder of several: the newest.
Json find_differences(const std::string& a, const std::string& b, const std::string& group);
std::string difference_as_text(const Json& found, Columns columns);

// What this machine offers to jobs, including GPUs, problems (`findings`), and what may be
// improved (`advice`). Throws Error if there is no job `only`. For each job, or only for `only`: its
// last state, and whether it can be reclaimed. `repair`: reclaims those that can; never a live one or one kept on
// purpose.
Json examine(const std::string& only, bool repair);
// Adds to the result of examine() who pushed the first NaN to a job, or pushes it within so many seconds. Ends as soon
// as that is known, or when the job ends.
void watch_for_nan(const std::string& job, double seconds, Json& examined);
std::string examination_as_text(const Json& examined, Columns columns);

// Parameters of the metrics for Prometheus.
struct MetricsRequest {
  std::string job;          // empty: all jobs, and publications
  std::string textfile;     // empty: none
  bool has_values = false;  // norms of variables, too, for which some of them are read
  bool is_openmetrics = false;
};
Json gather_metrics(const MetricsRequest& request);
std::string metrics_as_text(const Json& gathered, Columns columns);

// Answers HTTP GET and HEAD of /metrics until SIGINT or SIGTERM; calls `begun` when it starts. Port 0: any free one.
void serve_metrics(const MetricsRequest& request, const std::string& address, std::uint16_t port,
                   const std::function<void(const std::string& url)>& begun);

// Removes the segments of a job of which no lock is held. `force`: also if its control segment is damaged, of
// another version or missing, with all names that begin like the job's.
Json remove(const std::string& job, bool force);

// Removes a publication of which no lock is held. `force`: also if it is damaged or of another version.
Json remove_publication(const std::string& name, bool force);

// Adds the publications to the result of examine(), or to what it has reclaimed.
void examine_publications(bool repair, Json& found);

// Removes every job and publication that examine() would reclaim.
Json remove_dead();
std::string removal_as_text(const Json& removed, Columns columns);

}  // namespace ps_shm::inspect
