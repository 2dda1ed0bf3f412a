#include "server/cli/start_screen.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "server/figures.h"
#include "server/version.h"

namespace foredraft {
namespace {

constexpr int kBarCells = 16;

std::string Megabytes(int64_t bytes) { return Grouped((bytes + 500'000) / 1'000'000); }

// "4.5 M", "671.0 B"
std::string Short(int64_t number) {
  if (number >= 1'000'000'000) return absl::StrFormat("%.1f B", static_cast<double>(number) / 1e9);
  if (number >= 1'000'000) return absl::StrFormat("%.1f M", static_cast<double>(number) / 1e6);
  return Grouped(number);
}

std::string Drafts(const Config& config) {
  if (!config.speculative_config.has_value() || config.speculative_config->max_draft_len == 0) return "none";
  const SpeculativeConfig& speculative = *config.speculative_config;
  return absl::StrCat("up to ", speculative.max_draft_len, ", ",
                      speculative.use_mtp_vanilla ? "vanilla" : "eagle", ", ",
                      speculative.use_relaxed_acceptance_for_thinking ? "relaxed while thinking" : "strict");
}

}  // namespace

void StartScreen::Line(const std::string& text) const {
  if (terminal_) {
    fprintf(stderr, "%s\n", text.c_str());
  } else {
    LogLine(LogLevel::kInfo, text);
  }
}

void StartScreen::ModelKnown(const Config& config, const ModelFacts& facts) {
  Line(absl::StrCat("foredraft ", kVersion, "   ", facts.device, "   numerics ", facts.numerics_class));
  Line(absl::StrCat("model    ", config.served_model_name, ", ", Short(facts.parameters), " parameters, ",
                    Megabytes(facts.bytes), " MB, ", facts.mtp_modules,
                    facts.mtp_modules == 1 ? " MTP module" : " MTP modules", "     drafts  ",
                    Drafts(config)));
  Line(absl::StrCat("cache    ", Grouped(facts.cache_blocks), " blocks x ", facts.tokens_per_block,
                    " tokens = ", Grouped(facts.cache_blocks * facts.tokens_per_block),
                    " tokens     ranks   1"));
}

void StartScreen::Loading(int64_t done_bytes, int64_t total_bytes) {
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const int64_t whole = std::max<int64_t>(total_bytes, 1);
  if (!terminal_) {
    const int64_t tenths = done_bytes * 10 / whole;
    if (tenths == shown_) return;
    shown_ = tenths;
    LogLine(LogLevel::kInfo, absl::StrFormat("loading  %d%%  %s / %s MB   %.1f s", tenths * 10,
                                             Megabytes(done_bytes), Megabytes(total_bytes), seconds));
    return;
  }
  std::string bar;
  for (int cell = 0; cell < kBarCells; ++cell) bar += cell * whole < done_bytes * kBarCells ? "█" : "░";
  fprintf(stderr, "\rloading  %s %s / %s MB   %.1f s", bar.c_str(), Megabytes(done_bytes).c_str(),
          Megabytes(total_bytes).c_str(), seconds);
  fflush(stderr);
}

void StartScreen::WarmedUp(int graph_count, double seconds) {
  const std::string text = absl::StrFormat("warm-up %d graphs, %.1f s", graph_count, seconds);
  if (terminal_) {
    fprintf(stderr, "              %s\n", text.c_str());
  } else {
    LogLine(LogLevel::kInfo, text);
  }
}

void StartScreen::Serving(const std::string& grpc_address, const std::string& metrics_address) {
  Line(absl::StrCat("serving  grpc ", grpc_address, "   metrics http://", metrics_address, "/metrics"));
}

}  // namespace foredraft
