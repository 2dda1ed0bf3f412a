#!/usr/bin/env python3
"""A client of foredraft.v1. docs/examples/README.md says how to generate the modules it imports.

usage: client.py [--server HOST:PORT] stream QUESTION
       client.py [--server HOST:PORT] cancel QUESTION [--after N]
       client.py [--server HOST:PORT] logprobs TEXT
       client.py [--server HOST:PORT] turns QUESTION...
"""

import argparse
import sys

import grpc

from foredraft.v1 import generation_pb2 as pb
from foredraft.v1 import generation_pb2_grpc


def chat_request(messages, max_tokens):
    """A request for the answer to (role, content) messages, greedy. An absent field has the model's default."""
    request = pb.GenerateRequest(max_tokens=max_tokens, sampling=pb.SamplingParams(temperature=0))
    for role, content in messages:
        request.chat.messages.add(role=role, content=content)
    return request


def stream(stub, question):
    # The RPC's deadline holds in the daemon's queue too.
    for chunk in stub.GenerateStream(chat_request([("user", question)], 400), timeout=60):
        print(chunk.thinking + chunk.text, end="", flush=True)
    # usage, speculation and timing are final in the last chunk.
    print(f"\n{chunk.finish_reason}: {chunk.usage.prompt_tokens} + {chunk.usage.completion_tokens} tokens,"
          f" {chunk.speculation.accepted_tokens} of {chunk.speculation.draft_tokens} drafts accepted,"
          f" {chunk.timing.tokens_per_second:.0f} tokens/s")


def cancel(stub, question, after):
    request = chat_request([("user", question)], 4000)
    request.ignore_eos = True  # without the cancel it would run to max_tokens
    call = stub.GenerateStream(request)
    tokens = 0
    try:
        for chunk in call:
            tokens += len(chunk.token_ids)
            if tokens >= after:
                call.cancel()  # the daemon ends the request and gives its KV blocks back
    except grpc.RpcError as error:
        if error.code() != grpc.StatusCode.CANCELLED:
            raise
    print(f"{call.code().name} after {tokens} tokens")


def logprobs(stub, text):
    response = stub.Generate(pb.GenerateRequest(text=text, max_tokens=8, logprobs=3,
                                                sampling=pb.SamplingParams(temperature=0)))
    def spelled(token_id):
        return repr(stub.Detokenize(pb.DetokenizeRequest(token_ids=[token_id])).text)
    for token in response.logprobs:
        rivals = ", ".join(f"{spelled(rival.token_id)} {rival.logprob:.3f}" for rival in token.top)
        print(f"{spelled(token.token_id)} {token.logprob:.3f}   of {rivals}")


def turns(stub, questions):
    messages = []
    for question in questions:
        messages.append(("user", question))
        response = stub.Generate(chat_request(messages, 400), timeout=60)
        # A reasoning model's thinking is apart; the history takes the answer alone.
        answer = response.text.strip()
        messages.append(("assistant", answer))
        print(f"> {question}\n{answer}   (prompt {response.usage.prompt_tokens} tokens, cached {response.usage.cached_tokens})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="127.0.0.1:50051")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("stream").add_argument("question")
    command = commands.add_parser("cancel")
    command.add_argument("question")
    command.add_argument("--after", type=int, default=20, help="tokens to read first")
    commands.add_parser("logprobs").add_argument("text")
    commands.add_parser("turns").add_argument("question", nargs="+")
    arguments = parser.parse_args()

    # With TLS: grpc.secure_channel(server, grpc.ssl_channel_credentials(ca_pem, key_pem, certificate_pem)).
    with grpc.insecure_channel(arguments.server) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        try:
            if arguments.command == "stream":
                stream(stub, arguments.question)
            elif arguments.command == "cancel":
                cancel(stub, arguments.question, arguments.after)
            elif arguments.command == "logprobs":
                logprobs(stub, arguments.text)
            else:
                turns(stub, arguments.question)
        except grpc.RpcError as error:
            # The text names the field, the value and what is allowed.
            print(f"client.py: {error.code().name}: {error.details()}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
