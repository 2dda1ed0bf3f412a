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

// Tokens, positions and counts must be equal. Real values are judged by their largest difference from the
// exact reference, in units of that reference's root mean square.
struct Boundary {
  std::string name;      // its name in the contract
  std::string shape;     // of one step: "[9, 256]"
  int64_t rows = 0;      // compared, over all steps
  int64_t left_out = 0;  // rows not compared, because rounding alone may choose other experts
  double difference = 0;
  double allowed = 0;  // 0: the values have to be equal

  // False for NaN, and where hardly any row was compared. A few rows suffice, because every row exercises all
  // of the mathematics.
  bool ok() const { return difference <= allowed && rows > left_out / 16; }
};

// Compares a boundary of whole numbers.
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

// Compares a boundary of real values.
class RealBoundary {
 public:
  RealBoundary(std::string name, std::string shape) : boundary_{std::move(name), std::move(shape)} {}

  // Adds one row as computed by the device, by the exact reference, and by the reference that rounds where
  // the recipes do.
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

  // The kernels round where the rounding reference does, but add in another order. So the errors of both are
  // independent and of similar size: the larger may be twice the other. FP32 additions lose at most the
  // number of terms times 2^-24.
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

// Compares a boundary of positions that rows select by scores. Where two positions have nearly equal scores,
// either is right.
class SelectionBoundary {
 public:
  SelectionBoundary(std::string name, std::string shape) : boundary_{std::move(name), std::move(shape)} {}

  // Adds one row. gap: exact score of the best position left out minus that of the worst one selected. exact,
  // rounded: the scores by the exact reference, and by the one that rounds where the recipes do.
  void Add(double gap, const reference::Vector& exact, const reference::Vector& rounded) {
    ++boundary_.rows;
    gap_ = std::max(gap_, gap);
    for (size_t i = 0; i < exact.size(); ++i) {
      square_ += exact[i] * exact[i];
      ++count_;
      rounding_ = std::max(rounding_, std::abs(rounded[i] - exact[i]));
    }
  }
  // Adds a row that attends the positions that another row selected.
  void AddShared(bool equal) {
    ++boundary_.rows;
    if (!equal) gap_ = std::numeric_limits<double>::infinity();
  }

  // The device's scores, as other real values (RealBoundary), are off by at most twice the rounding, and a
  // gap is the difference of two scores.
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
