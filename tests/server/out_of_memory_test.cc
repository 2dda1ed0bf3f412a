// A call for which the process gets no memory, on the scripted rank. Sanitizers reserve more address space
// than any limit here leaves.

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "tests/server/serving_fixture.h"

namespace foredraft {
namespace {

using grpc::StatusCode;
using testing::HasSubstr;

// This process may take so much more address space, until the end of the scope.
class AddressSpace {
 public:
  explicit AddressSpace(size_t more_bytes) {
    getrlimit(RLIMIT_AS, &saved_);
    size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit limit = saved_;
    limit.rlim_cur = pages * static_cast<size_t>(sysconf(_SC_PAGESIZE)) + more_bytes;
    EXPECT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  }
  ~AddressSpace() { setrlimit(RLIMIT_AS, &saved_); }

 private:
  rlimit saved_{};
};

TEST(OutOfMemory, ACallIsRefusedWithATextAndTheOthersGoOn) {
  TestServer server;
  v1::TokenizeRequest request;
  request.set_text(std::string(size_t{3} << 20, '\n'));  // needs 80 MB
  const auto tokenize = [&] {
    grpc::ClientContext context;
    v1::TokenizeResponse response;
    return server.stub().Tokenize(&context, request, &response);
  };
  ASSERT_TRUE(tokenize().ok());  // every thread has its memory pools
  {
    const AddressSpace little(size_t{48} << 20);
    for (int i = 0; i < 5; ++i) {
      const grpc::Status status = tokenize();
      EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
      EXPECT_THAT(status.error_message(), HasSubstr("out of memory"));
    }
    EXPECT_TRUE(ReadStream(server.stub(), SimpleRequest(1, 5)).status.ok());
  }
  EXPECT_TRUE(tokenize().ok());
}

}  // namespace
}  // namespace foredraft

#endif
