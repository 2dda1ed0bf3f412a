#ifndef FOREDRAFT_TESTS_BENCH_TABLE_H_
#define FOREDRAFT_TESTS_BENCH_TABLE_H_

#include <algorithm>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"

namespace foredraft {

// Rows of text, printed as columns, or as a Markdown table.
class Table {
 public:
  explicit Table(std::vector<std::string> head) { Add(std::move(head)); }
  void Add(std::vector<std::string> row) {
    CHECK(rows_.empty() || row.size() == rows_[0].size()) << "a row of " << row.size() << " cells";
    rows_.push_back(std::move(row));
  }

  void Print(bool markdown) const {
    std::vector<size_t> widths(rows_[0].size());
    for (const auto& row : rows_) {
      for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    }
    for (const auto& row : rows_) {
      for (size_t i = 0; i < row.size(); ++i) {
        const std::string pad(markdown ? 0 : widths[i] - row[i].size(), ' ');
        std::cout << (markdown ? "| " : i == 0 ? "" : "  ") << pad << row[i] << (markdown ? " " : "");
      }
      std::cout << (markdown ? "|\n" : "\n");
      if (markdown && &row == &rows_[0]) {
        for (size_t i = 0; i < row.size(); ++i) std::cout << "|---";
        std::cout << "|\n";
      }
    }
    std::cout << "\n" << std::flush;
  }

 private:
  std::vector<std::vector<std::string>> rows_;  // the head first
};

}  // namespace foredraft

#endif  // FOREDRAFT_TESTS_BENCH_TABLE_H_
