"""A server that behaves like Ollama where that matters to its callers, for end-to-end tests. Standard library only; it has no model.

    python3 ollama.py [options]     prints "listens on http://127.0.0.1:PORT" and serves until it is killed

    --models a:1b,b:8b      models that it has (default m:8b)
    --load SECONDS          how long a model is loaded (default 1); real ones take 30 to 60
    --token SECONDS         between two pieces of an answer (default 0.005)
    --memory N              models that fit into memory at once (default 1): another one evicts the one used longest ago
    --parallel N            requests that a model works on at once (default 1)
    --max-queue N           requests that may wait for a model that is not loaded (default 512); more are 503
    --split                 writes lines in pieces that are cut anywhere, also inside a character

What it copies: a loaded model takes requests in without bound and works on them in order; a request for a model that is not loaded
waits for its load, and a load ends when the one who caused it leaves; another `num_ctx` loads the model anew; `keep_alive` lets it go
after its last request (0 at once, negative never); a chat without messages loads or, with keep_alive 0, unloads; a stream stops when
its reader leaves, a plain answer is worked out all the same; with `"truncate": false` what does not fit is 400.

The text of the last user message can ask for trouble: [busy] [missing] [error-line] [cut] [load] [unload] [error].
GET /_seen tells what happened so far.
"""

import argparse
import datetime
import json
import select
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BUSY = "server busy, please try again.  maximum pending requests exceeded"
NEVER = float("inf")


class Left(Exception):
    """The caller is gone."""


def seconds_of(keep_alive):
    """Go's durations, or a number of seconds."""
    if keep_alive is None:
        return 300.0
    if isinstance(keep_alive, (int, float)):
        return NEVER if keep_alive < 0 else float(keep_alive)
    total, number = 0.0, ""
    text = keep_alive.replace("ms", "x")
    negative = text.startswith("-")
    for letter in text.lstrip("-"):
        if letter.isdigit() or letter == ".":
            number += letter
        else:
            total += float(number) * {"h": 3600, "m": 60, "s": 1, "x": 0.001}[letter]
            number = ""
    return NEVER if negative else total


class Model:
    def __init__(self, name, num_ctx):
        self.name, self.num_ctx = name, num_ctx
        self.users = 0
        self.last_used = time.monotonic()
        self.keeps_for = 300.0
        self.turns = []

    def expires(self):
        return NEVER if self.users else self.last_used + self.keeps_for


class Server:
    """All state, behind one lock."""

    def __init__(self, options):
        self.options = options
        self.names = options.models.split(",")
        self.changed = threading.Condition()
        self.loaded = {}
        self.loading = None
        self.pending = 0
        self.seen = {
            "chats": 0, "warm_ups": 0, "loads": 0, "aborted_loads": 0, "evictions": 0, "expired": 0, "busy": 0, "left": 0, "finished": 0,
            "running_max": 0, "waiting_max": 0, "embeds": 0, "num_ctx": [], "keep_alive": [],
        }
        threading.Thread(target=self.let_go, daemon=True).start()

    def let_go(self):
        """Puts models away whose time is up."""
        while True:
            time.sleep(0.02)
            with self.changed:
                now = time.monotonic()
                for model in [model for model in self.loaded.values() if model.expires() <= now]:
                    del self.loaded[model.name]
                    self.seen["expired"] += 1
                    self.changed.notify_all()

    def wait(self, caller):
        self.changed.wait(0.02)
        if caller.is_gone():
            raise Left

    def get(self, name, num_ctx, keep_alive, caller):
        """The model, loaded, with one more user. Waits in line; None if the line is full."""
        with self.changed:
            model = self.loaded.get(name)
            if not (model and model.num_ctx == num_ctx):
                if self.pending >= self.options.max_queue:
                    self.seen["busy"] += 1
                    return None
                self.pending += 1
                try:
                    model = self.load(name, num_ctx, caller)
                finally:
                    self.pending -= 1
                    self.changed.notify_all()
            model.users += 1
            model.keeps_for = seconds_of(keep_alive)
            return model

    def load(self, name, num_ctx, caller):
        while True:
            model = self.loaded.get(name)
            if model and model.num_ctx == num_ctx:
                return model
            if self.loading is None and self.make_room(name):
                break
            self.wait(caller)
        self.loading = name
        try:
            until = time.monotonic() + self.options.load
            while time.monotonic() < until:
                self.wait(caller)
        except Left:
            self.seen["aborted_loads"] += 1
            raise
        finally:
            self.loading = None
            self.changed.notify_all()
        model = self.loaded[name] = Model(name, num_ctx)
        self.seen["loads"] += 1
        self.changed.notify_all()
        return model

    def make_room(self, name):
        """False while models that are at work are in the way."""
        in_the_way = [self.loaded[name]] if name in self.loaded else []
        others = sorted((model for model in self.loaded.values() if model.name != name), key=lambda model: model.last_used)
        in_the_way += others[: max(0, len(others) - self.options.memory + 1)]
        if any(model.users for model in in_the_way):
            return False
        for model in in_the_way:
            del self.loaded[model.name]
            self.seen["evictions"] += 1
        return True

    def begin(self, model, caller):
        """Waits for this caller's turn."""
        with self.changed:
            model.turns.append(caller)
            self.seen["waiting_max"] = max(self.seen["waiting_max"], len(model.turns) - self.options.parallel)
            while caller not in model.turns[: self.options.parallel]:
                self.wait(caller)
            running = sum(min(len(known.turns), self.options.parallel) for known in self.loaded.values())
            self.seen["running_max"] = max(self.seen["running_max"], running)

    def end(self, model, caller):
        with self.changed:
            if caller in model.turns:
                model.turns.remove(caller)
            model.users -= 1
            model.last_used = time.monotonic()
            if model.keeps_for == 0 and not model.users and self.loaded.get(model.name) is model:
                del self.loaded[model.name]
            self.changed.notify_all()

    def count(self, what):
        with self.changed:
            self.seen[what] += 1


def value_for(schema, root):
    """The plainest value of a schema."""
    if "$ref" in schema:
        place = root
        for step in schema["$ref"].lstrip("#/").split("/"):
            place = place[step]
        return value_for(place, root)
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return value_for(schema[key][0], root)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type", "object")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        return {name: value_for(inner, root) for name, inner in schema.get("properties", {}).items()}
    if kind == "array":
        return [value_for(schema.get("items", {"type": "string"}), root)] * max(1, schema.get("minItems", 1))
    if kind in ("number", "integer"):
        return schema.get("maximum", schema.get("minimum", 1))
    if kind == "boolean":
        return True
    return "초안 🦀 끝"[: schema.get("maxLength", 100)].ljust(schema.get("minLength", 0), "끝")


class Ollama(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_state = None

    def log_message(self, *_):
        pass

    def is_gone(self):
        ready, _, _ = select.select([self.connection], [], [], 0)
        if not ready:
            return False
        try:
            return self.connection.recv(1, socket.MSG_PEEK) == b""
        except OSError:
            return True

    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json; charset=utf-8")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def piece(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def lines(self, *lines):
        """Lines of a stream that go out together."""
        data = b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in lines)
        if self.is_gone():
            raise Left
        if not self.server_state.options.split:
            self.piece(data)
            return
        for start in range(0, len(data), 37):
            self.piece(data[start : start + 37])
            time.sleep(0.001)

    def do_GET(self):
        state = self.server_state
        if self.path == "/api/version":
            self.answer(200, {"version": "0.0.0-fake"})
        elif self.path == "/api/tags":
            self.answer(200, {"models": [{"name": name, "model": name, "size": 1} for name in state.names]})
        elif self.path == "/api/ps":
            with state.changed:
                self.answer(200, {"models": [self.told(model) for model in state.loaded.values()]})
        elif self.path == "/_seen":
            with state.changed:
                self.answer(200, dict(state.seen, loaded=sorted(state.loaded)))
        else:
            self.answer(404, {"error": "not found"})

    def told(self, model):
        left = min(model.expires() - time.monotonic(), 10 * 365 * 86400)
        expires = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=left)
        return {
            "name": model.name, "model": model.name, "size": 1, "size_vram": 1, "expires_at": expires.isoformat(),
            "context_length": model.num_ctx,
        }

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        try:
            asked = json.loads(body)
        except ValueError as error:
            return self.answer(400, {"error": str(error)})
        try:
            if self.path == "/api/chat":
                self.chat(asked)
            elif self.path == "/api/embed":
                self.embed(asked)
            else:
                self.answer(404, {"error": "not found"})
        except (Left, BrokenPipeError, ConnectionResetError):
            self.server_state.count("left")
            self.close_connection = True

    def named(self, asked):
        name = asked.get("model", "")
        full = name if ":" in name else name + ":latest"
        if full in self.server_state.names:
            return full
        self.answer(404, {"error": f"model '{name}' not found"})
        return None

    def chat(self, asked):
        state = self.server_state
        name = self.named(asked)
        if name is None:
            return
        messages, options = asked.get("messages") or [], asked.get("options") or {}
        num_ctx, keep_alive = options.get("num_ctx", 4096), asked.get("keep_alive")
        with state.changed:
            state.seen["chats" if messages else "warm_ups"] += 1
            state.seen["num_ctx"] = sorted({*state.seen["num_ctx"], num_ctx})
            state.seen["keep_alive"] = sorted({*state.seen["keep_alive"], str(keep_alive)})
        bare = {"model": name, "created_at": now(), "message": {"role": "assistant", "content": ""}, "done": True}
        if not messages and seconds_of(keep_alive) == 0:
            with state.changed:
                state.loaded.pop(name, None)
            return self.answer(200, dict(bare, done_reason="unload"))
        trouble = messages[-1].get("content", "") if messages else ""
        if "[busy]" in trouble:
            return self.answer(503, {"error": BUSY})
        if "[missing]" in trouble:
            return self.answer(404, {"error": f'model "{name}" not found, try pulling it first'})
        if "[error]" in trouble:
            return self.answer(500, {"error": "model runner has unexpectedly stopped, this may be due to resource limitations"})
        began = time.monotonic()
        model = state.get(name, num_ctx, keep_alive, self)
        if model is None:
            return self.answer(503, {"error": BUSY})
        load_duration = time.monotonic() - began
        try:
            said = any(message.get("role") != "system" for message in messages)
            reason = "unload" if "[unload]" in trouble else "load"
            if not said or "[load]" in trouble or "[unload]" in trouble:
                return self.answer(200, dict(bare, done_reason=reason))
            prompt = sum(len(message.get("content", "")) // 4 + 4 for message in messages)
            if prompt > num_ctx and asked.get("truncate") is False:
                return self.answer(400, {"error": "the input length exceeds the context length"})
            state.begin(model, self)
            self.generate(asked, name, prompt, load_duration, trouble)
            state.count("finished")
        finally:
            state.end(model, self)

    def generate(self, asked, name, prompt, load_duration, trouble):
        options = asked.get("options") or {}
        text = self.text_for(asked)
        pieces = [text[start : start + 3] for start in range(0, len(text), 3)]
        cap = options.get("num_predict", -1)
        reason = "length" if 0 <= cap < len(pieces) else "stop"
        pieces = pieces[:cap] if 0 <= cap else pieces
        calls = self.tool_calls_for(asked)
        last = {
            "model": name, "created_at": now(), "message": {"role": "assistant", "content": ""}, "done": True, "done_reason": reason,
            "total_duration": 1, "load_duration": int(load_duration * 1e9), "prompt_eval_count": prompt, "eval_count": len(pieces),
        }
        pause = self.server_state.options.token
        if asked.get("stream") is False:
            time.sleep(pause * len(pieces))
            message = {"role": "assistant", "content": "".join(pieces)}
            message = dict(message, content="", tool_calls=calls) if calls else message
            return self.answer(200, dict(last, message=message))
        self.send_response(200)
        self.send_header("content-type", "application/x-ndjson")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        line = lambda message: {"model": name, "created_at": now(), "message": dict(message, role="assistant"), "done": False}
        if calls:
            self.lines(line({"content": "", "tool_calls": calls}))
            pieces = []
        for place, piece in enumerate(pieces):
            time.sleep(pause)
            if place and "[error-line]" in trouble:
                self.lines({"error": "an error was encountered while running the model"})
                return self.piece(b"")
            if place and "[cut]" in trouble:
                raise BrokenPipeError
            if place + 1 < len(pieces):
                self.lines(line({"content": piece}))
        # The last piece and the end come in one write.
        self.lines(*([line({"content": pieces[-1]})] if pieces else []), last)
        self.piece(b"")

    def text_for(self, asked):
        schema = asked.get("format")
        if isinstance(schema, dict):
            return json.dumps(value_for(schema, schema), ensure_ascii=False)
        if schema == "json":
            return '{"ok": true}'
        return "# 초안\n\n강가의 길은 조용했다 🦀. 끝"

    def tool_calls_for(self, asked):
        if not asked.get("tools") or asked["messages"][-1].get("role") == "tool":
            return None
        function = asked["tools"][0]["function"]
        arguments = value_for(function.get("parameters", {}), function.get("parameters", {}))
        return [{"function": {"name": function["name"], "arguments": arguments}}]

    def embed(self, asked):
        state = self.server_state
        name = self.named(asked)
        if name is None:
            return
        model = state.get(name, (asked.get("options") or {}).get("num_ctx", 4096), asked.get("keep_alive"), self)
        if model is None:
            return self.answer(503, {"error": BUSY})
        try:
            inputs = asked["input"] if isinstance(asked["input"], list) else [asked["input"]]
            vectors = [[round(len(text) / 7, 3), -1.0, 0.25] for text in inputs]
            state.count("embeds")
            self.answer(200, {"model": name, "embeddings": vectors, "prompt_eval_count": sum(len(text) for text in inputs)})
        finally:
            state.end(model, self)


def now():
    return datetime.datetime.now(datetime.timezone.utc).isoformat()


def main():
    parser = argparse.ArgumentParser(description="a server that behaves like Ollama")
    parser.add_argument("--models", default="m:8b")
    parser.add_argument("--load", type=float, default=1.0)
    parser.add_argument("--token", type=float, default=0.005)
    parser.add_argument("--memory", type=int, default=1)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--max-queue", type=int, default=512)
    parser.add_argument("--split", action="store_true")
    Ollama.server_state = Server(parser.parse_args())
    server = ThreadingHTTPServer(("127.0.0.1", 0), Ollama)
    server.daemon_threads = True
    print(f"listens on http://127.0.0.1:{server.server_address[1]}", file=sys.stderr, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
