#pragma once

// What a listener serves (HttpService), and a request whose answer is owed (HttpExchange).

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/http/http_message.h"

namespace foredraft {

// A request that has arrived whole. The service answers it once: with Answer, or with StartStream, any number
// of Writes and Finish. Nothing here blocks, and everything may be called on any thread.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  virtual const HttpRequest& request() const = 0;
  // The body's share of the listener's budget, which is given back with the last copy. Whatever is made of
  // the body and outlives Serve holds a copy.
  virtual std::shared_ptr<const void> body_memory() const = 0;

  // Answers in one piece. `make` runs on a thread of the listener.
  virtual void Answer(std::function<HttpAnswer()> make) = 0;

  // Begins an answer of unknown length: status, type and headers of `head`; the body is not used. Sent with
  // the first Write.
  virtual void StartStream(HttpAnswer head) = 0;
  // Sends what `make` returns; it runs on a thread of the listener once the writes before it are done.
  // `written` is called once, with false if the connection is gone. The caller bounds how many writes wait.
  virtual void Write(std::function<std::string()> make, std::function<void(bool ok)> written) = 0;
  // Ends the stream with what `make` returns.
  virtual void Finish(std::function<std::string()> make) = 0;

  // Calls `silent` on a thread of the listener whenever it has sent nothing for HttpLimits::keepalive and has
  // nothing to send, until the answer is complete. May be called once.
  virtual void WhenSilent(std::function<void()> silent) = 0;

  // Closes the connection.
  virtual void Abandon() = 0;

  // `ended` is called once, on any thread: true once the answer is sent, false once the connection is gone
  // before that. Called at once if that has happened already.
  virtual void OnEnd(std::function<void(bool complete)> ended) = 0;
};

// Thread-safe.
class HttpService {
 public:
  virtual ~HttpService() = default;

  // Answers a request by its head alone: pages without a body to read, and refusals of bodies that shall not
  // be read. Runs on the threads that move bytes, so it must be quick.
  virtual std::optional<HttpAnswer> AnswerHead(const HttpRequest& head) = 0;
  // The client whose turn a request takes, among the requests that wait to be read.
  virtual std::string ClientOf(const HttpRequest& request) { return request.peer; }
  // Serves a request whose head AnswerHead let pass. Runs on a worker of the listener, or without workers
  // where AnswerHead runs. If it finds no memory, it answers with that and throws nothing.
  virtual void Serve(std::shared_ptr<HttpExchange> exchange) = 0;
  // The answer to a request that the listener refuses itself: malformed, too large, too slow. `path` is empty
  // where its head has not come.
  virtual HttpAnswer Refusal(const std::string& path, int status, std::string text) = 0;
};

}  // namespace foredraft
