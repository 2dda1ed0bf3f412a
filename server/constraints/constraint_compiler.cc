#include "server/constraints/constraint_compiler.h"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/visible_text.h"

namespace foredraft {
namespace {

constexpr size_t kMostMessageBytes = 1000;  // it travels in the call's trailers, which are bounded

// "json_schema: #/a: ..." with `field` in the place of the constraint's name, on one line.
absl::Status Named(const absl::Status& status, Constraint::Kind kind, const std::string& field) {
  std::string_view text(status.message().data(), status.message().size());
  const std::string name = absl::StrCat(std::string(ConstraintField(kind)), ": ");
  if (text.starts_with(name)) text.remove_prefix(name.size());
  const std::string shown = ShortText(VisibleText(text.substr(0, kMostMessageBytes + 1)), kMostMessageBytes);
  return absl::Status(status.code(), absl::StrCat(field, ": ", shown));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Vocabulary>> MakeVocabulary(const Tokenizer& tokenizer, int vocab_size,
                                                                 const std::vector<int32_t>& end_ids) {
  VocabularySource source;
  source.ordinary.resize(static_cast<size_t>(std::max(vocab_size, tokenizer.vocab_size())));
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) source.ordinary[id] = tokenizer.TokenBytes(id);
  for (const auto& [content, id] : tokenizer.added_ids()) source.added.emplace_back(content, id);
  std::sort(source.added.begin(), source.added.end(),
            [](const auto& a, const auto& b) { return a.second < b.second; });
  source.end_ids = end_ids;
  return Vocabulary::Create(std::move(source));
}

GrammarLimits GrammarLimitsOf(const ConstraintsConfig& config) {
  GrammarLimits limits;
  limits.max_source_bytes = int64_t{config.max_source_kib} << 10;
  limits.max_nodes = config.max_nodes;
  limits.max_depth = config.max_depth;
  limits.max_configurations = config.max_configurations;
  limits.max_compile_steps = config.max_compile_steps;
  limits.max_mask_steps = config.max_mask_steps;
  return limits;
}

ConstraintCompiler::ConstraintCompiler(std::shared_ptr<const Vocabulary> vocabulary,
                                       const std::optional<ConstraintsConfig>& config, Metrics& metrics)
    : vocabulary_(std::move(vocabulary)), metrics_(metrics) {
  SetConfig(config);
}

void ConstraintCompiler::SetConfig(const std::optional<ConstraintsConfig>& config) {
  if (vocabulary_ == nullptr) return;
  const std::lock_guard lock(mutex_);
  if (config == config_) return;
  config_ = config;
  if (cache_ != nullptr) {
    const GrammarCache::Counts counts = cache_->counts();
    past_hits_ += counts.hits;
    past_misses_ += counts.misses;
    cache_.reset();
  }
  if (!config) return;
  cache_ =
      std::make_shared<GrammarCache>(vocabulary_, GrammarLimitsOf(*config), int64_t{config->cache_mib} << 20);
}

void ConstraintCompiler::SetForced(bool forced) {
  const std::lock_guard lock(mutex_);
  forced_ = forced;
}

bool ConstraintCompiler::is_forced() const {
  const std::lock_guard lock(mutex_);
  return forced_;
}

std::shared_ptr<GrammarCache> ConstraintCompiler::Cache() const {
  const std::lock_guard lock(mutex_);
  return cache_;
}

bool ConstraintCompiler::IsAddedToken(int32_t id) const {
  return vocabulary_ != nullptr && id >= 0 && id < vocabulary_->size() && vocabulary_->IsToken(id) &&
         !vocabulary_->IsOrdinary(id);
}

absl::StatusOr<std::shared_ptr<const Grammar>> ConstraintCompiler::FindOrCompile(
    GrammarCache& cache, const Constraint& constraint) {
  if (std::shared_ptr<const Grammar> grammar = cache.Find(constraint)) return grammar;
  const auto begin = std::chrono::steady_clock::now();
  absl::StatusOr<std::shared_ptr<const Grammar>> grammar = cache.CompileNew(constraint);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  metrics_.RecordConstraintCompile(seconds.count());
  return grammar;
}

absl::StatusOr<std::shared_ptr<const Grammar>> ConstraintCompiler::Compile(const Constraint& constraint,
                                                                           const std::string& field) {
  const std::shared_ptr<GrammarCache> cache = Cache();
  if (cache == nullptr) {
    return Refuse(ConstraintRefusal::kOff,
                  absl::StrCat(field, ": structured output is off (constraints: null), allowed unset"));
  }
  absl::StatusOr<std::shared_ptr<const Grammar>> grammar = FindOrCompile(*cache, constraint);
  if (grammar.ok()) return grammar;
  return Refused(grammar.status(), constraint.kind, field);
}

absl::Status ConstraintCompiler::Refused(const absl::Status& status, Constraint::Kind kind,
                                         const std::string& field) {
  const bool is_limit = absl::StrContains(status.message(), "constraints.max_");
  metrics_.RecordConstraintRefused(is_limit ? ConstraintRefusal::kLimit : ConstraintRefusal::kSource);
  return Named(status, kind, field);
}

absl::Status ConstraintCompiler::CheckLength(Constraint::Kind kind, const std::string& source,
                                             const std::vector<std::string>& choices,
                                             const std::string& field) {
  const std::shared_ptr<GrammarCache> cache = Cache();
  if (cache == nullptr) return absl::OkStatus();
  const absl::Status status = CheckConstraintLength(kind, source, choices, cache->limits());
  return status.ok() ? status : Refused(status, kind, field);
}

bool ConstraintCompiler::CanCompile(const Constraint& constraint) {
  const std::shared_ptr<GrammarCache> cache = Cache();
  return cache != nullptr && FindOrCompile(*cache, constraint).ok();
}

absl::Status ConstraintCompiler::Refuse(ConstraintRefusal reason, const std::string& text) {
  metrics_.RecordConstraintRefused(reason);
  return absl::InvalidArgumentError(text);
}

ConstraintCacheCounts ConstraintCompiler::counts() const {
  const std::lock_guard lock(mutex_);
  ConstraintCacheCounts counts{.hits = past_hits_, .misses = past_misses_};
  if (cache_ == nullptr) return counts;
  const GrammarCache::Counts now = cache_->counts();
  counts.hits += now.hits;
  counts.misses += now.misses;
  counts.bytes = now.bytes;
  return counts;
}

}  // namespace foredraft
