#pragma once

// Compiles requests' constraints (docs/structured-output.md). Holds the served model's vocabulary, made once
// when the model is loaded, the grammars compiled so far, and the configuration's limits. Thread-safe.
// Compiling takes up to a second, so it must not run on gRPC's threads (Admission).

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "config/config.h"
#include "grammar/compile.h"
#include "grammar/vocabulary.h"
#include "server/output/metrics.h"
#include "server/text/tokenizer.h"

namespace foredraft {

// The tokens of a model as masks see them. `vocab_size`: the model's, at least the tokenizer's. Added tokens
// and `end_ids`, which end every output, match no bytes. Fails as Vocabulary::Create does (INVALID_ARGUMENT).
absl::StatusOr<std::shared_ptr<const Vocabulary>> MakeVocabulary(const Tokenizer& tokenizer, int vocab_size,
                                                                 const std::vector<int32_t>& end_ids);

GrammarLimits GrammarLimitsOf(const ConstraintsConfig& config);

class ConstraintCompiler {
 public:
  // Without a configuration (constraints: null) nothing is ever compiled, and there is no vocabulary.
  // `metrics` outlives this.
  ConstraintCompiler(std::shared_ptr<const Vocabulary> vocabulary,
                     const std::optional<ConstraintsConfig>& config, Metrics& metrics);

  // Called at a reload. Requests that are compiled already keep their grammars.
  void SetConfig(const std::optional<ConstraintsConfig>& config);
  // Set while a test forces acceptance: tokens are then not the model's, and masks would not hold.
  void SetForced(bool forced);

  bool is_on() const { return Cache() != nullptr; }
  bool is_forced() const;
  // Whether `id` is an added token, which can come only as the end of an output. False without a vocabulary.
  bool IsAddedToken(int32_t id) const;
  bool has_end_ids() const { return vocabulary_ != nullptr && !vocabulary_->end_ids().empty(); }

  // Errors name `field` in the place of the constraint's own name. Fails as CompileConstraint does
  // (INVALID_ARGUMENT, FAILED_PRECONDITION), and counts what it refuses.
  absl::StatusOr<std::shared_ptr<const Grammar>> Compile(const Constraint& constraint,
                                                         const std::string& field);
  // Refuses a source or choices that are too long, with Compile's error, and counts that likewise. OK while
  // constraints are off.
  absl::Status CheckLength(Constraint::Kind kind, const std::string& source,
                           const std::vector<std::string>& choices, const std::string& field);
  // Whether Compile would succeed; nothing is counted as refused. False while constraints are off.
  bool CanCompile(const Constraint& constraint);
  // Returns INVALID_ARGUMENT and counts it as a refusal.
  absl::Status Refuse(ConstraintRefusal reason, const std::string& text);
  void CountAccepted(ConstrainedBy kind) { metrics_.CountConstrained(kind); }

  // Lookups in all caches since the start; bytes of the present cache.
  ConstraintCacheCounts counts() const;

 private:
  std::shared_ptr<GrammarCache> Cache() const;
  // Compile's error for a grammar that was refused with `status`; counts it.
  absl::Status Refused(const absl::Status& status, Constraint::Kind kind, const std::string& field);
  absl::StatusOr<std::shared_ptr<const Grammar>> FindOrCompile(GrammarCache& cache,
                                                               const Constraint& constraint);

  const std::shared_ptr<const Vocabulary> vocabulary_;
  Metrics& metrics_;

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::optional<ConstraintsConfig> config_;
  std::shared_ptr<GrammarCache> cache_;  // null: off
  int64_t past_hits_ = 0, past_misses_ = 0;
  bool forced_ = false;
};

}  // namespace foredraft
