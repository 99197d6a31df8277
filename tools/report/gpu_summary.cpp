#include "report/gpu_summary.hpp"

#include <fmt/format.h>

#include "report/terminal.hpp"

namespace ps_shm::report {
namespace {

constexpr double kMicroseconds = 1e6;

std::string way_text(const std::string& device, const std::string& strategy, std::uint32_t threads) {
  return fmt::format("{}: {}, applied by {}", device, strategy,
                     threads == 1 ? "one thread" : fmt::format("{} threads", threads));
}

std::string graph_text(const train::GpuReport& report) {
  if (report.graph_operations == 0) return {};
  return fmt::format("; a step in one launch of {} operations, from its pull to its push", report.graph_operations);
}

}  // namespace

nlohmann::ordered_json to_json(const train::GpuReport& report) {
  if (const std::optional<GpuRowTransfers>& rows = report.rows)
    return {{"device", report.device},
            {"strategy", rows->strategy},
            {"reasons", rows->reasons},
            {"threads", rows->threads},
            {"registered_bytes", rows->registered_bytes},
            {"pulls", rows->pulls},
            {"pulled_rows", rows->pulled_rows},
            {"bounced_rows", rows->bounced_rows},
            {"pushes", rows->pushes},
            {"given_rows", rows->given_rows},
            {"sent_rows", rows->sent_rows}};
  const GpuTransfers& transfers = report.transfers;
  nlohmann::ordered_json json = {{"device", report.device},
                                 {"strategy", transfers.strategy},
                                 {"reasons", transfers.reasons},
                                 {"threads", transfers.threads},
                                 {"registered_bytes", transfers.registered_bytes},
                                 {"registration_seconds", transfers.registration_seconds},
                                 {"resident", report.is_resident},
                                 {"graph", report.graph_operations == 0 ? "none" : "step"},
                                 {"graph_operations", report.graph_operations},
                                 {"pulls", transfers.pulls},
                                 {"redone_chunks", transfers.redone_chunks},
                                 {"bounced_chunks", transfers.bounced_chunks},
                                 {"pushes", transfers.pushes},
                                 {"sampled_steps", report.step.sampled}};
  if (report.step.sampled == 0) return json;
  json["step_us"] = {{"wait", report.step.wait * kMicroseconds},
                     {"pull", report.step.pull * kMicroseconds},
                     {"compute", report.step.compute * kMicroseconds},
                     {"push", report.step.push * kMicroseconds}};
  json["idle_share"] = report.step.idle_share();
  return json;
}

std::string to_text(const train::GpuReport& report) {
  if (const std::optional<GpuRowTransfers>& rows = report.rows)
    return fmt::format("GPU {}; {:.1f} MiB registered; {} rows pulled, {} gradients of rows pushed as {}\n  {}",
                       way_text(report.device, rows->strategy, rows->threads),
                       double(rows->registered_bytes) / (1 << 20), rows->pulled_rows, rows->given_rows, rows->sent_rows,
                       rows->reasons);
  const GpuTransfers& transfers = report.transfers;
  std::string text =
      fmt::format("GPU {}; {:.1f} MiB registered in {}", way_text(report.device, transfers.strategy, transfers.threads),
                  double(transfers.registered_bytes) / (1 << 20), duration(transfers.registration_seconds));
  text += graph_text(report);
  if (report.step.sampled > 0)
    text +=
        fmt::format("; per step: pull {:.1f}, compute {:.1f}, push {:.1f}, wait {:.1f} us, idle {:.0f} %",
                    report.step.pull * kMicroseconds, report.step.compute * kMicroseconds,
                    report.step.push * kMicroseconds, report.step.wait * kMicroseconds, 100 * report.step.idle_share());
  return text + fmt::format("; {} chunk pulls retried\n  {}", transfers.redone_chunks, transfers.reasons);
}

std::string transfers_text(const nlohmann::ordered_json& gpu) {
  if (!gpu.is_object()) return {};
  const auto text = [&](const char* name) { return gpu.value(name, std::string()); };
  return way_text(text("device"), text("strategy"), gpu.value("threads", 1U)) + "\n" + text("reasons");
}

}  // namespace ps_shm::report
