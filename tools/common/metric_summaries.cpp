#include "common/metric_summaries.hpp"

#include <utility>

namespace ps_shm::tools {

void add_metrics(persistence::Summary& summary, const report::Metrics& metrics, const std::string& prefix) {
  const auto add = [&](const char* name, const std::optional<double>& value) {
    if (value) summary.add_scalar(prefix + name, *value);
  };
  add("loss", metrics.loss);
  add("accuracy", metrics.accuracy);
  add("auc", metrics.auc);
  add("log_loss", metrics.log_loss);
  add("rmse", metrics.rmse);
}

void write_test(const SummarySettings& settings, std::uint64_t step, const report::Metrics& test,
                const std::optional<report::Metrics>& average_test, LogCallback log) {
  if (settings.dir.empty()) return;
  persistence::Summary summary;
  add_metrics(summary, test);
  if (average_test) add_metrics(summary, *average_test, "average/");
  SummaryWriter(settings, "test", {}, std::move(log)).write(step, summary);
}

}  // namespace ps_shm::tools
