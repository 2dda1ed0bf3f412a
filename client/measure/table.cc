#include "client/measure/table.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"

namespace foredraft {

Table::Table(std::vector<std::string> head) { rows_.push_back(std::move(head)); }

void Table::Add(std::vector<std::string> row) {
  CHECK_EQ(row.size(), rows_[0].size()) << "cells in a row of a table";
  rows_.push_back(std::move(row));
}

std::string Table::Text() const {
  std::vector<size_t> widths(rows_[0].size());
  for (const std::vector<std::string>& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const std::vector<std::string>& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string pad(widths[i] - row[i].size(), ' ');
      absl::StrAppend(&text, i == 0 ? row[i] : "  ", pad, i == 0 ? "" : row[i]);
    }
    text += "\n";
  }
  return text;
}

std::string Table::Markdown() const {
  std::string text;
  for (const std::vector<std::string>& row : rows_) {
    absl::StrAppend(&text, "| ", absl::StrJoin(row, " | "), " |\n");
    if (&row != &rows_[0]) continue;
    for (size_t i = 0; i < row.size(); ++i) text += "|---";
    text += "|\n";
  }
  return text;
}

void Table::Print(bool markdown) const {
  std::fputs(absl::StrCat(markdown ? Markdown() : Text(), "\n").c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace foredraft
