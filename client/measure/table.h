#pragma once

// Rows of cells under one head, for a terminal or for a Markdown page.

#include <string>
#include <vector>

namespace foredraft {

class Table {
 public:
  explicit Table(std::vector<std::string> head);
  void Add(std::vector<std::string> row);  // as many cells as the head has

  std::string Text() const;  // the first column aligned left, the others right
  std::string Markdown() const;
  // Prints Text or Markdown on stdout, then an empty line.
  void Print(bool markdown) const;

 private:
  std::vector<std::vector<std::string>> rows_;  // the head first
};

}  // namespace foredraft
