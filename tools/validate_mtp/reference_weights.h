#pragma once

// The tensors of a checkpoint as double, dequantised (docs/deepseek-v3.md section 4, docs/deepseek-v4.md
// section 8), under the names of its description without the prefix of a nested model
// (ModelConfig::tensor_prefix). A tensor is read at its first use and then kept. Shares only the file reader
// with the loader.
//
// The checkpoint has passed CheckCheckpoint, so it has every tensor; asking for any other tensor is a broken
// invariant. If a file cannot be read, status() is an error from then on and the tensor counts as zero. One
// thread.

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/model/model_config.h"
#include "tools/validate_mtp/reference_math.h"

namespace foredraft::reference {

class Weights {
 public:
  // kBf16: matrices and activations are rounded where the recipes round them to BF16. Vectors stay exact.
  enum class Precision { kExact, kBf16 };

  static absl::StatusOr<Weights> Open(const std::string& dir, const ModelConfig& config, Precision precision);
  // Takes an open checkpoint, which may have renamed its tensors.
  Weights(Checkpoint checkpoint, const ModelConfig& config, Precision precision)
      : checkpoint_(std::move(checkpoint)), config_(config), precision_(precision) {}

  // `<module>.weight`, a matrix.
  const Table& Matrix(const std::string& module) const;
  // A tensor without rounding, a vector as one row.
  const Table& Exact(const std::string& name) const;
  // The values of `<module>.weight`, a vector.
  std::span<const double> Norm(const std::string& module) const { return Exact(module + ".weight").values; }
  bool Has(const std::string& name) const { return Find(name).entry != nullptr; }

  bool rounds() const { return precision_ == Precision::kBf16; }
  const absl::Status& status() const { return status_; }

 private:
  TensorLocation Find(const std::string& name) const {
    return checkpoint_.Find(config_.tensor_prefix + name);
  }
  std::string Bytes(const std::string& name) const;
  Table Read(const std::string& name) const;
  Table ReadFp8(const std::string& name, const std::string& module) const;
  Table ReadPacked(const std::string& module) const;
  Table ReadNvfp4(const std::string& module) const;
  // Codes [rows, cols] of 4 bits, low nibble first, with a scale per `group` columns.
  Table Codes4(const std::string& codes, const Table& scales, bool int4) const;

  Checkpoint checkpoint_;
  ModelConfig config_;
  Precision precision_;
  mutable absl::Status status_;
  mutable std::map<std::string, Table> matrices_;
  mutable std::map<std::string, Table> exact_;
};

}  // namespace foredraft::reference
