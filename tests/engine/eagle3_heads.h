#pragma once

// Eagle3 heads for abacus: the trained one, and random ones of every form.

#include <string>
#include <vector>

#include "tests/engine/test_requests.h"

namespace foredraft {

inline constexpr char kAbacusEagle3Dir[] = "deploy/models/abacus-eagle3";

struct HeadForm {
  const char* name;
  const char* fields;  // of config.json, in JSON: what differs from a head with MLA like abacus' layers
};

// The switches one by one and together, and vocabularies and heads of either kind.
const std::vector<HeadForm>& HeadForms();

// The directory of a random checkpoint of kimi_k2's shape, nested in a multimodal model as Kimi-K2.5 is, and
// a head of that shape, which chooses among half of its tokens.
std::string NestedKimiDir();
extern const HeadForm kKimiHead;

// The directory of a random head of this form for a target, which is written once for a binary.
std::string RandomHeadDir(const HeadForm& form, const std::string& target_dir = kAbacusDir);

}  // namespace foredraft
