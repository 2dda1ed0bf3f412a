#include "server/cli/start_screen.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/grouped_digits.h"
#include "base/log.h"
#include "base/version.h"
#include "config/host_resources.h"
#include "engine/kinds/drafter_kinds.h"
#include "kernels/cpu/device/topology.h"
#include "server/cli/progress_bar.h"
#include "server/output/request_log.h"

namespace foredraft {
namespace {

// "4.5 M", "671.0 B"
std::string Short(int64_t number) {
  if (number >= 1'000'000'000) return absl::StrFormat("%.1f B", static_cast<double>(number) / 1e9);
  if (number >= 1'000'000) return absl::StrFormat("%.1f M", static_cast<double>(number) / 1e6);
  return Grouped(number);
}

// "3 MTP modules"
std::string Modules(int count) { return absl::StrCat(count, count == 1 ? " MTP module" : " MTP modules"); }

std::string Drafts(const Config& config) {
  if (!config.speculative_config.has_value() || config.speculative_config->max_draft_len == 0) return "none";
  const SpeculativeConfig& speculative = *config.speculative_config;
  return absl::StrCat("up to ", speculative.max_draft_len, ", ", SelectedDrafter(config)->name, ", ",
                      speculative.use_relaxed_acceptance_for_thinking ? "relaxed while thinking" : "strict");
}

// "2 nodes x 32 cores, 2 x 384 GiB     threads 64, pinned, each node's memory read by its own".
std::string CpuText(const Config& config) {
  const CpuTopology topology = ReadTopology();
  const bool by_node =
      config.cpu.numa == CpuNuma::kAuto &&
      PlaceThreads(topology, config.cpu.threads, config.cpu.pin.value_or(false)).nodes.size() > 1;
  return absl::StrCat(TopologyText(topology), "     threads ", config.cpu.threads,
                      config.cpu.pin.value_or(false) ? ", pinned" : "",
                      by_node ? ", each node's memory read by its own" : "");
}

// "   page http://127.0.0.1:8000/", which a browser can open; not on a unix socket.
std::string PageText(absl::string_view openai) {
  if (openai.empty() || absl::StrContains(openai, "unix:")) return "";
  return absl::StrCat("   page ", absl::StripSuffix(openai, "v1"));
}

}  // namespace

void StartScreen::Line(const std::string& text) const {
  if (terminal_) {
    ShowLine(text);
  } else {
    LogLine(LogLevel::kInfo, text);
  }
}

void StartScreen::ModelKnown(const Config& config, const ModelSummary& summary) {
  model_lines_.push_back(absl::StrCat(
      "model    ", config.served_model_name, ", ", Short(summary.parameters), " parameters, ",
      Megabytes(summary.bytes), " MB, ",
      summary.stages > 0 ? absl::StrCat(summary.stages, " drafter stages") : Modules(summary.mtp_modules),
      "     drafts  ", Drafts(config)));
  const std::string cache =
      summary.cache_blocks == 0
          ? absl::StrCat(config.kv_cache_config.free_gpu_memory_fraction,
                         " of the memory that the weights leave")
          : absl::StrCat(Grouped(summary.cache_blocks), " blocks x ", summary.tokens_per_block,
                         " tokens = ", Grouped(summary.cache_blocks * summary.tokens_per_block), " tokens");
  model_lines_.push_back(absl::StrCat("cache    ", cache, "     ranks   ", summary.ranks));
  if (config.backend == Backend::kCpu && summary.ranks == 1) {
    model_lines_.push_back(absl::StrCat("cpu      ", CpuText(config)));
  }
  if (const std::string granted = ReadHostResources().granted; !granted.empty()) {
    model_lines_.push_back(absl::StrCat("granted  ", granted));
  }
  ranks_.resize(summary.ranks);
}

void StartScreen::RanksKnown(const RankGroupSummary& summary) {
  Line(absl::StrCat("foredraft ", kVersion, "   ", summary.device, "   numerics ", summary.numerics_class));
  for (const std::string& line : model_lines_) Line(line);
}

void StartScreen::Waiting(const std::string& what) { Line(absl::StrCat("waiting  ", what)); }

std::string StartScreen::Label(int rank) const {
  return ranks_.size() == 1 ? "loading" : absl::StrCat("loading  rank ", rank);
}

void StartScreen::Loading(int rank, int64_t done_bytes, int64_t total_bytes) {
  Progress& progress = ranks_[rank];
  if (progress.total_bytes == 0) progress.began = Clock::now();
  progress.ended = Clock::now();
  progress.done_bytes = done_bytes;
  progress.total_bytes = total_bytes;
  if (terminal_) return DrawBars();
  const int64_t tenths = done_bytes * 10 / std::max<int64_t>(total_bytes, 1);
  const int64_t step = ranks_.size() == 1 ? 1 : 5;
  if (progress.logged_tenths >= 0 && tenths < progress.logged_tenths + step) return;
  progress.logged_tenths = tenths - tenths % step;
  LogLine(LogLevel::kInfo,
          absl::StrFormat("%s  %d%%  %s / %s MB   %.1f s", Label(rank), tenths * 10, Megabytes(done_bytes),
                          Megabytes(total_bytes), progress.seconds()));
}

StartScreen::~StartScreen() {
  if (terminal_) KeepBelowLog("");  // of a start that failed
}

// A line per rank, below the log.
void StartScreen::DrawBars() const {
  std::string lines;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const Progress& progress = ranks_[rank];
    const std::string state =
        progress.total_bytes == 0
            ? "has not begun"
            : absl::StrFormat("%s   %.1f s", ProgressBar(progress.done_bytes, progress.total_bytes),
                              progress.seconds());
    absl::StrAppend(&lines, rank > 0 ? "\n" : "", Label(static_cast<int>(rank)), "  ", state);
  }
  KeepBelowLog(absl::StrCat(lines, warm_up_));
}

void StartScreen::WarmingUp() {
  if (!terminal_) return LogLine(LogLevel::kInfo, "warm-up  every step runs for the first time");
  warm_up_ = "              warm-up ";
  DrawBars();
}

void StartScreen::WarmedUp(int graph_count, double seconds) {
  const std::string text = absl::StrFormat("%d graphs, %.1f s", graph_count, seconds);
  if (!terminal_) return LogLine(LogLevel::kInfo, absl::StrCat("warm-up ", text));
  warm_up_ = absl::StrCat("              warm-up ", text);
  DrawBars();
  KeepBelowLog("");
}

void StartScreen::Serving(const ServedAddresses& addresses) {
  Line(absl::StrCat("serving  grpc ", addresses.grpc, "   metrics http://", addresses.metrics, "/metrics",
                    addresses.openai.empty() ? "" : "   openai ", addresses.openai,
                    PageText(addresses.openai), addresses.gateway.empty() ? "" : "   gateway ",
                    addresses.gateway));
}

}  // namespace foredraft
