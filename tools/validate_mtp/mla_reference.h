#pragma once

// Multi-head latent attention in double (docs/deepseek-v3.md section 3), a row at a time.

#include <string>
#include <vector>

#include "tools/validate_mtp/reference_parts.h"

namespace foredraft::reference {

class MlaReference : protected ReferenceParts {
 public:
  // The values of a row that later rows read.
  struct CachedRow {
    Vector latent;    // c, then k_pe
    Vector expanded;  // keys and values of all heads
  };

  // `prefix` precedes "self_attn" in tensor names. Weights and configuration outlive this object.
  MlaReference(const Weights& weights, const ModelConfig& config, std::string prefix);

  // The normed latent of the queries of a row x; without q_lora_rank, x.
  Vector QueryLatent(const Vector& x) const;
  CachedRow Cached(const Vector& x, int position) const;
  // o_proj of the attention of the row with this query latent over `attended`. The two forms round at
  // different places; without rounding they are equal.
  Vector Attend(int position, const Vector& query_latent, const std::vector<const CachedRow*>& attended,
                bool decode_form) const;

  const Vector& frequencies() const { return frequencies_; }
  double rope_factor() const { return rope_factor_; }

 private:
  std::string Name(const std::string& name) const { return prefix_ + name; }
  Vector Biased(const std::string& module, const Vector& x) const;
  Vector LatentNorm(std::span<const double> x, const std::string& module) const;
  Vector RotatedQuery(int position, int head, const Vector& q) const;
  Vector AttendHead(int head, const Vector& query, const std::vector<const CachedRow*>& attended) const;
  Vector AttendLatents(int head, const Vector& query, const std::vector<const CachedRow*>& attended) const;

  const std::string prefix_;
  const Vector frequencies_;
  double scale_;
  double rope_factor_ = 1;
};

}  // namespace foredraft::reference
