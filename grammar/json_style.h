#pragma once

namespace foredraft {

struct JsonStyle {
  bool compact = false;  // no white space between JSON's tokens
};

}  // namespace foredraft
