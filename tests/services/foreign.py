"""A service that speaks as other frameworks do, for end-to-end tests. Standard library only.

    python3 foreign.py          prints "listens on http://127.0.0.1:PORT" and serves until it is killed

The first part of the path says which tongue: spring, problem, fastapi, odd. The body's `input.case` (odd: `job.kind`) says what goes
wrong; without one the answer is good. The bodies are what these frameworks send by themselves.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SPRING = {
    "broken": (500, "Internal Server Error", "boom in the kitchen"),
    "busy": (503, "Service Unavailable", "come back later"),
    "bad": (400, "Bad Request", "notes must not be empty"),
}
PROBLEM = {
    "broken": (500, "about:blank", "Internal Server Error", "the oven is out"),
    "busy": (429, "https://problems.example/too-many", "Too Many Requests", "ten a minute"),
    "bad": (422, "https://problems.example/invalid", "Unprocessable Content", "a photo is missing"),
}
FASTAPI = {
    "broken": (500, "Internal Server Error"),
    "busy": (503, "model is loading"),
    "bad": (404, "no such style"),
    "invalid": (
        422,
        [
            {"type": "missing", "loc": ["body", "notes"], "msg": "Field required", "input": {}},
            {"type": "int_parsing", "loc": ["body", "count"], "msg": "Input should be a valid integer", "input": "x"},
        ],
    ),
}
# code, text, may be tried again, seconds
ODD = {
    "broken": (500, "E-77", "the press is jammed", True, 7),
    "bad": (409, "E-12", "that job is there", False, None),
    "inside": (200, "E-90", "the paper ran out", True, 3),
}


class Foreign(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body, kind="application/json", **headers):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def serve(self):
        size = int(self.headers.get("content-length") or 0)
        try:
            body = json.loads(self.rfile.read(size) or b"null")
        except ValueError:
            return self.answer(400, b"not JSON", "text/plain")
        tongue = self.path.split("/")[1]
        if tongue == "odd":
            return self.odd(body)
        if self.command != "POST" or not isinstance(body, dict) or "input" not in body:
            return self.answer(405, b"POST an input", "text/plain")
        case = body["input"].get("case")
        if case is None:
            usage = {"prompt_tokens": 3, "output_tokens": 5}
            return self.answer(200, {"output": {"from": tongue, "heard": body["input"]}, "usage": usage})
        getattr(self, tongue)(case)

    def spring(self, case):
        status, error, message = SPRING[case]
        headers = {"retry_after": "4"} if status == 503 else {}
        stamp = "2026-01-02T03:04:05.678+00:00"
        body = {"timestamp": stamp, "status": status, "error": error, "message": message, "path": self.path}
        self.answer(status, body, **headers)

    def problem(self, case):
        status, kind, title, detail = PROBLEM[case]
        headers = {"retry_after": "2"} if status == 429 else {}
        body = {"type": kind, "title": title, "status": status, "detail": detail, "instance": self.path}
        self.answer(status, body, "application/problem+json", **headers)

    def fastapi(self, case):
        status, detail = FASTAPI[case]
        # Starlette's own answer to an uncaught exception is plain text.
        if status == 500:
            return self.answer(500, b"Internal Server Error", "text/plain; charset=utf-8")
        self.answer(status, {"detail": detail})

    def odd(self, body):
        """PUT /odd/jobs, a header of its own, a shape of its own, errors at places of their own."""
        if self.command != "PUT" or self.headers.get("x-press") != "seven" or "job" not in (body or {}):
            return self.answer(418, {"fault": {"no": "E-00", "why": "not spoken to as it wants"}})
        job = body["job"]
        if job.get("kind") in ODD:
            status, code, text, again, seconds = ODD[job["kind"]]
            fault = {"no": code, "why": text, "again": again}
            if seconds is not None:
                fault["wait"] = seconds
            return self.answer(status, {"fault": fault})
        sheet = {"printed": job["text"].upper(), "copies": job["copies"]}
        self.answer(200, {"result": {"sheets": [sheet]}, "meter": {"ink": 11, "paper": 13}})

    do_POST = do_PUT = do_GET = serve


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Foreign)
    print(f"listens on http://127.0.0.1:{server.server_port}", file=sys.stderr, flush=True)
    server.serve_forever()
