"""A scripted OpenAI-compatible upstream. Standard library only; what it does is the model's name.

    python3 upstream.py         prints "listens on http://127.0.0.1:PORT/v1" and serves until it is killed

    ok, tools        answer; `tools` calls the first tool it was sent, and says back all tools as they came
    busy             429 with Retry-After: 7       always    429 without it     far    429 with 3600
    broken           500      bad    400           final     503 with x-should-retry: false
    slow             the first byte after 30 s     cut       a stream that dies after its first content
GET /count/MODEL says how many requests for it came.
"""

import json
import sys
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COUNT = Counter()
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
ERRORS = {
    "busy": (429, "rate_limit_error", "rate_limit_exceeded", {"retry-after": "7"}),
    "far": (429, "rate_limit_error", None, {"retry-after": "3600"}),
    "always": (429, "rate_limit_error", "rate_limit_exceeded", {}),
    "broken": (500, "server_error", None, {}),
    "bad": (400, "invalid_request_error", None, {}),
    "final": (503, "server_error", None, {"x-should-retry": "false"}),
}


class Upstream(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body, headers=()):
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in [("content-type", "application/json"), ("content-length", str(len(data))), *headers]:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        if self.path.startswith("/count/"):
            return self.answer(200, {"count": COUNT[self.path.removeprefix("/count/")]})
        self.answer(200, {"object": "list", "data": [{"id": name, "object": "model"} for name in ("ok", "tools", *ERRORS)]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)))
        model = body["model"]
        COUNT[model] += 1
        if model in ERRORS:
            status, kind, code, headers = ERRORS[model]
            error = {"message": f"{model}, as asked", "type": kind, "param": None, "code": code}
            return self.answer(status, {"error": error}, headers.items())
        if model == "slow":
            time.sleep(30)
        message = {"role": "assistant", "content": "hello there"}
        finish = "stop"
        if model == "tools":
            function = {"name": body["tools"][0]["function"]["name"], "arguments": json.dumps({"heard": body["tools"]})}
            message = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": function}]}
            finish = "tool_calls"
        if body.get("stream"):
            return self.stream(body, message, finish)
        choice = {"index": 0, "message": message, "finish_reason": finish}
        self.answer(200, {"id": "x", "object": "chat.completion", "created": 1, "model": model, "choices": [choice], "usage": USAGE})

    def stream(self, body, message, finish):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True

        def frame(choices, **more):
            chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": body["model"], "choices": choices, **more}
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
            self.wfile.flush()

        def delta(fields, finish_reason=None):
            frame([{"index": 0, "delta": fields, "finish_reason": finish_reason}])

        if message.get("tool_calls"):
            delta({"role": "assistant", "tool_calls": [{"index": 0, **message["tool_calls"][0]}]})
        else:
            delta({"role": "assistant", "content": "hello"})
            if body["model"] == "cut":
                return
            delta({"content": " there"})
        delta({}, finish)
        if (body.get("stream_options") or {}).get("include_usage"):
            frame([], usage=USAGE)
        self.wfile.write(b"data: [DONE]\n\n")


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    print(f"listens on http://127.0.0.1:{server.server_port}/v1", file=sys.stderr, flush=True)
    server.serve_forever()
