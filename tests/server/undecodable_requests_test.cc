// Bytes that are no message of the method that they call, to every method of a server.

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "foredraft/v1/admin.pb.h"
#include "foredraft/v1/generation.pb.h"
#include "tests/server/serving_fixture.h"
#include "vllm/grpc/engine/vllm_engine.pb.h"

namespace foredraft {
namespace {

using testing::HasSubstr;

// What the call ends with; a stream's messages are not read.
grpc::Status Call(TestServer& server, const std::string& method, const std::string& bytes) {
  grpc::GenericStub stub(server.channel());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  const grpc::Slice slice(bytes);
  grpc::ByteBuffer request(&slice, 1), response;
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareUnaryCall(&context, method, request, &queue);
  call->StartCall();
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  EXPECT_TRUE(queue.Next(&tag, &ok));
  return status;
}

TEST(UndecodableRequests, AreInvalidArgumentsWithAText) {
  TestServer server;
  const std::string cut("\x0a\x7f", 2);             // field 1, 127 bytes of it missing
  const std::string no_tag("\x07\x07\x07\x07", 4);  // a wire type that there is not
  for (const google::protobuf::FileDescriptor* file :
       {v1::GenerateRequest::descriptor()->file(), v1::GetLoadRequest::descriptor()->file(),
        vllm::grpc::engine::GenerateRequest::descriptor()->file()}) {
    for (int i = 0; i < file->service_count(); ++i) {
      for (int j = 0; j < file->service(i)->method_count(); ++j) {
        const std::string method =
            absl::StrCat("/", file->service(i)->full_name(), "/", file->service(i)->method(j)->name());
        for (const std::string& bytes : {cut, no_tag}) {
          const grpc::Status status = Call(server, method, bytes);
          EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
          EXPECT_THAT(status.error_message(), HasSubstr(method + ": the request cannot be decoded"))
              << method;
        }
      }
    }
  }
}

TEST(UndecodableRequests, TextHasToBeUtf8) {
  TestServer server;
  const std::string text("\x12\x02\xff\xfe", 4);  // GenerateRequest.text
  for (const char* method : {"Generate", "GenerateStream", "Tokenize"}) {
    const std::string path = std::string("/foredraft.v1.GenerationService/") + method;
    const grpc::Status status =
        Call(server, path, method == std::string("Tokenize") ? "\x0a\x02\xff\xfe" : text);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
    EXPECT_THAT(status.error_message(), HasSubstr("not UTF-8")) << method;
  }
}

TEST(UndecodableRequests, AnUnknownMethodStaysUnimplemented) {
  TestServer server;
  const grpc::Status status = Call(server, "/foredraft.v1.GenerationService/Guess", "");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << status.error_message();
}

}  // namespace
}  // namespace foredraft
