"""What the tests of the service stand on: scripted agents that write down every call, a `watertight serve` that can be killed, and a
small HTTP client with server-sent events. Standard library only, loopback only."""
import http.client, http.server, json, os, random, signal, socket, sqlite3, subprocess, threading, time


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Agents:
    """Agents over HTTP. Every call is kept as a dict; `slow_s` is the range of how long one takes."""

    def __init__(self, slow_s=(0.01, 0.15), seed=1):
        self.calls, self.lock, self.slow_s, self.chance = [], threading.Lock(), slow_s, random.Random(seed)
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                call = {"key": self.headers["idempotency-key"], "run": self.headers["x-watertight-run-id"],
                        "agent": self.path.strip("/"), "at": time.time(), "answered": None}
                with outer.lock:
                    outer.calls.append(call)
                    wait = outer.chance.uniform(*outer.slow_s)
                time.sleep(wait)
                answer = json.dumps({"output": {"text": f"{call['agent']} of {call['key']}", "input": body["input"]},
                                     "usage": {"prompt_tokens": 10, "output_tokens": 5}}).encode()
                call["answered"] = time.time()
                try:
                    self.send_response(200)
                    self.send_header("content-type", "application/json")
                    self.send_header("content-length", str(len(answer)))
                    self.end_headers()
                    self.wfile.write(answer)
                except OSError:
                    pass  # whoever asked was killed

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads, request_queue_size = True, 256

            def handle_error(self, *_):
                pass  # a caller that was killed is no error of ours

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


class Service:
    """A `watertight serve` in a folder of its own."""

    def __init__(self, program, folder, port=None, extra=()):
        self.program, self.folder, self.port, self.extra = program, folder, port or free_port(), list(extra)
        self.log = open(os.path.join(folder, "serve.log"), "ab")
        self.process = None

    def start(self):
        command = [self.program, "serve", self.folder, "--listen", f"127.0.0.1:{self.port}", *self.extra]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL)
        return self

    def wait_ready(self, seconds=30):
        until = time.time() + seconds
        while time.time() < until:
            if self.process.poll() is not None:
                raise SystemExit(f"serve ended with {self.process.returncode}:\n{self.tail()}")
            try:
                if self.request("GET", "/readyz")[0] == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.05)
        raise SystemExit(f"serve is not ready after {seconds} s:\n{self.tail()}")

    def tail(self):
        return open(self.log.name, encoding="utf-8", errors="replace").read()[-3000:]

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def terminate(self, seconds=60):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)

    def request(self, method, path, body=None, headers=None, timeout=40):
        return request(self.port, method, path, body, headers, timeout)


def request(port, method, path, body=None, headers=None, timeout=40):
    """One exchange: status, headers, body as JSON where it is JSON. OSError where there is no answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        headers = dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            headers.setdefault("content-type", "application/json")
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            text = answer.read()
        except http.client.HTTPException as error:
            raise OSError(str(error)) from error
        try:
            return answer.status, answer.headers, json.loads(text)
        except ValueError:
            return answer.status, answer.headers, text
    finally:
        connection.close()


def follow(port, run_id, after=0, headers=None, timeout=30):
    """A run's own events as they come, until the connection ends; OSError where it breaks. Reconnecting is the caller's part. What the
    service says of itself (`node.stopping`) has no id and is left out."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        try:
            connection.request("GET", f"/v1/runs/{run_id}/events", headers={"last-event-id": str(after), **(headers or {})})
            answer = connection.getresponse()
            if answer.status != 200:
                raise OSError(f"{answer.status} {answer.read()[:500]!r}")
            data = []
            for line in answer:
                line = line.decode().rstrip("\r\n")
                if line.startswith("data:"):
                    data.append(line[5:].lstrip())
                elif line == "" and data:
                    event = json.loads("\n".join(data))
                    if "id" in event:
                        yield event
                    data = []
        except http.client.HTTPException as error:
            raise OSError(str(error)) from error
    finally:
        connection.close()


def integrity(path):
    """What SQLite itself says of the journal."""
    database = sqlite3.connect(path, timeout=10)
    try:
        return database.execute("pragma integrity_check").fetchone()[0]
    finally:
        database.close()
