#ifndef FOREDRAFT_CONFIG_CONFIG_DOCS_H_
#define FOREDRAFT_CONFIG_CONFIG_DOCS_H_

#include <string>

namespace foredraft {

// docs/configuration.md, written from the rows of config_fields.h.
std::string ConfigurationDocument();

}  // namespace foredraft

#endif  // FOREDRAFT_CONFIG_CONFIG_DOCS_H_
