#pragma once

// The comparison of one boundary of the MTP chain (docs/mtp-contract.md section 1) with its reference.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tools/validate_mtp/reference_math.h"

namespace foredraft {

// Tokens, positions and counts: equal or not. Real values: the largest difference from the exact reference,
// in units of that reference's root mean square.
struct Boundary {
  std::string name;      // the contract's
  std::string shape;     // of one step: "[9, 256]"
  int64_t rows = 0;      // compared, over all steps
  int64_t left_out = 0;  // rows for which rounding alone may choose other experts
  double difference = 0;
  double allowed = 0;  // 0: the values have to be equal

  // Not with NaN, and not where hardly a row was compared. Every row goes through all of the mathematics.
  bool ok() const { return difference <= allowed && rows > left_out / 16; }
};

// A boundary of whole numbers while it is compared.
class CountBoundary {
 public:
  CountBoundary(std::string name, std::string shape) : boundary_{std::move(name), std::move(shape)} {}

  template <class A, class B>
  void Add(const std::vector<A>& values, const std::vector<B>& expected) {
    ++boundary_.rows;
    double difference = values.size() == expected.size() ? 0 : std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < std::min(values.size(), expected.size()); ++i) {
      difference =
          std::max(difference, std::abs(static_cast<double>(values[i]) - static_cast<double>(expected[i])));
    }
    boundary_.difference = std::max(boundary_.difference, difference);
  }
  const Boundary& result() const { return boundary_; }

 private:
  Boundary boundary_;
};

// A boundary of real values while it is compared.
class RealBoundary {
 public:
  RealBoundary(std::string name, std::string shape) : boundary_{std::move(name), std::move(shape)} {}

  // One row: of the device, of the exact reference, and of the reference that rounds where the recipes do.
  template <class Values>
  void Add(const Values& device, const reference::Vector& exact, const reference::Vector& rounded) {
    ++boundary_.rows;
    width_ = exact.size();
    for (size_t i = 0; i < exact.size(); ++i) {
      square_ += exact[i] * exact[i];
      ++count_;
      const double difference = std::abs(static_cast<double>(device[i]) - exact[i]);
      if (difference > difference_ || std::isnan(difference)) difference_ = difference;  // NaN stays
      rounding_ = std::max(rounding_, std::abs(rounded[i] - exact[i]));
    }
  }
  void LeaveOut() { ++boundary_.left_out; }

  // The kernels round where the rounding reference does, but in another order of additions, so the two errors
  // have one size and are independent: the larger of one may be twice that of the other. What FP32 additions
  // lose is at most the number of terms times 2^-24.
  Boundary result() const {
    Boundary result = boundary_;
    const double rms = std::sqrt(square_ / static_cast<double>(std::max<int64_t>(count_, 1)));
    result.difference = rms > 0 ? difference_ / rms : difference_;
    result.allowed = (rms > 0 ? 2 * rounding_ / rms : 0) + static_cast<double>(width_) * std::exp2(-24);
    return result;
  }
  double root_mean_square() const {
    return std::sqrt(square_ / static_cast<double>(std::max<int64_t>(count_, 1)));
  }

 private:
  Boundary boundary_;
  double square_ = 0;
  double difference_ = 0;
  double rounding_ = 0;
  int64_t count_ = 0;
  size_t width_ = 0;
};

// A boundary of positions that rows select by their scores, while it is compared. Where two positions have
// nearly equal scores, either is right.
class SelectionBoundary {
 public:
  SelectionBoundary(std::string name, std::string shape) : boundary_{std::move(name), std::move(shape)} {}

  // One row. gap: how much the best position left out is ahead of the worst one selected, by the exact
  // scores. rounded: of the reference that rounds where the recipes do.
  void Add(double gap, const reference::Vector& exact, const reference::Vector& rounded) {
    ++boundary_.rows;
    gap_ = std::max(gap_, gap);
    for (size_t i = 0; i < exact.size(); ++i) {
      square_ += exact[i] * exact[i];
      ++count_;
      rounding_ = std::max(rounding_, std::abs(rounded[i] - exact[i]));
    }
  }
  // A row that attends what another one selected.
  void AddShared(bool equal) {
    ++boundary_.rows;
    if (!equal) gap_ = std::numeric_limits<double>::infinity();
  }

  // A score of the device is off by at most twice the rounding, as a real value is (RealBoundary), and a gap
  // is the difference of two.
  Boundary result() const {
    Boundary result = boundary_;
    const double rms = std::sqrt(square_ / static_cast<double>(std::max<int64_t>(count_, 1)));
    const double unit = rms > 0 ? rms : 1;
    result.difference = gap_ / unit;
    result.allowed = 4 * rounding_ / unit;
    return result;
  }

 private:
  Boundary boundary_;
  double square_ = 0;
  double gap_ = 0;
  double rounding_ = 0;
  int64_t count_ = 0;
};

}  // namespace foredraft
