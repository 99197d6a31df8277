// Reads a job for the pages: polls the workers' words many times a second, and all else twice. Reads no more than
// the page shows.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "inspect_shm/watch/model.hpp"
#include "inspect_shm/watch/processes.hpp"
#include "inspect_shm/watch/rates.hpp"
#include "inspection/probe.hpp"
#include "ps_shm/job_view.hpp"

namespace ps_shm::watch {

// What a page needs in addition to the overview.
struct Wanted {
  Page page = Page::kOverview;
  std::vector<std::size_t> variables;  // those on the page
  std::size_t chosen = 0;              // the variable whose chunks or rows are on the page
};

class Sampler {
 public:
  // Throws Error as JobView does.
  explicit Sampler(const std::string& job);

  // Cheap: a few microseconds per worker.
  void look(const Wanted& wanted);

  // Updates the model. Throws Error if the job is damaged.
  const Model& sample(const Wanted& wanted);

  const Probe& probe() const { return probe_; }
  // The settings were changed from here: they are read again at the next sample.
  void forget_settings() { info_age_ = 0; }

 private:
  struct Known {  // a variable whose values were read
    ValueFacts facts;
    std::uint64_t updates = 0;  // of one chunk, with its values at that time
    std::vector<float> piece;
  };
  struct RowLooks {  // polls of one block's rows
    std::vector<std::uint64_t> rows;
    std::vector<float> before;
    std::vector<std::uint32_t> changes;
    std::uint32_t looks = 0;
    double seconds = 0;  // duration of the polls
    double last = 0;     // time of the last one
  };

  double now() const;
  void read_job();
  void read_state();
  void read_workers();
  void read_tables();
  void read_variables(const Wanted& wanted);
  std::uint64_t read_values(std::size_t number, std::uint64_t elements);
  void read_ratio(std::size_t number);
  void read_pieces(std::size_t chosen);
  void read_hot_rows(std::size_t chosen);
  void look_at_rows(std::size_t chosen);
  void find_alerts();

  JobView view_;
  Probe probe_;
  Processes processes_;
  Model model_;
  double began_;
  int info_age_ = 0;  // samples until rarely changing figures are read again
  std::uint64_t turn_ = 0;
  Rates steps_, variables_, retries_, pieces_{1.0}, lost_{1.0};
  std::map<std::uint32_t, Rates> worker_rates_;
  std::map<std::string, Rates> table_rates_;  // by name
  std::map<std::uint32_t, PhaseWatch> phases_;
  std::map<std::uint32_t, double> stopped_since_;  // by rank
  History losses_, speeds_;
  std::map<std::size_t, Known> known_;  // by number
  std::size_t pieces_of_ = 0;
  std::map<std::uint64_t, RowLooks> row_looks_;  // by block
};

}  // namespace ps_shm::watch
