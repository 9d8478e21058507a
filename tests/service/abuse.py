"""Abuse of a `watertight serve` with small caps: clear answers, bounded memory, and a service that goes on.

    python3 tests/service/abuse.py --watertight target/release/watertight [--watchers 2000]

While every cap is full, health, queries and the list of agents are asked all the time, and none of them may be refused or slow."""
import argparse, os, random, resource, socket, sys, tempfile, threading, time

from scripted import Agents, Service

MIB = 1024 * 1024
WORKFLOW = """[workflow]
name = "one"
output = "steps.a.output"
[inputs]
text = "text"
[[step]]
id = "a"
agent = "slow"
in = { text = "input.text" }
"""
# Above what the caps allow: bodies (8 MiB), watchers, connections, and the program itself. A debug build is larger than a release one.
RSS_MAX_MIB = 700


def settings(url, watchers):
    return f"""[serve]
connections_max = {watchers + 400}
body_bytes_max = 1000000
bodies_bytes_max = 8000000
header_timeout = "2s"
body_pause_max = "2s"
body_timeout = "5s"
idle_timeout = "20s"
calls_max = 4
uploads_max = 2
queries_max = 50
streams_max = {watchers}
streams_run_max = {watchers}
streams_key_max = {watchers}
[files]
file_bytes_max = 2000000
[providers.scripted]
kind = "http"
base_url = "{url}"
slots = 64
[agents.slow]
provider = "scripted"
path = "/slow"
slots = 64
timeout = "120s"
retry = {{ attempts_max = 1 }}
"""


class Raw:
    """A connection that says what it wants, as it wants."""

    def __init__(self, port, text=b"", timeout=15):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        if text:
            self.send(text)

    def send(self, text):
        self.socket.sendall(text)

    def answer(self):
        """What comes until it is closed, a bound is reached, or nothing comes any more."""
        got = b""
        try:
            while len(got) < MIB and not done(got):
                piece = self.socket.recv(65536)
                if not piece:
                    break
                got += piece
        except OSError:
            pass
        return got

    def close(self):
        self.socket.close()


def done(got):
    head, found, body = got.partition(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if found and line.startswith(b"content-length:"):
            return len(body) >= int(line.split(b":")[1])
    return False


def post(path, body, more=b"", length=None):
    size = len(body) if length is None else length
    return b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%s\r\n" % (path, size, more) + body


class Abuse:
    def __init__(self, service):
        self.service, self.port, self.faults = service, service.port, []

    def must(self, what, condition, got=b""):
        if not condition:
            self.faults.append(f"{what}: {got!r}"[:600])

    def tells(self, what, text, statuses, code=b'"error_code"'):
        """One exchange that has to end with one of these statuses and, where `code` says so, an envelope."""
        raw = Raw(self.port)
        try:
            raw.send(text)
        except OSError:
            pass  # refused before all of it was sent; what was said about it is still to be read
        got = raw.answer()
        raw.close()
        status = int(got.split(b" ")[1]) if got.startswith(b"HTTP/1.") else 0
        self.must(what, status in statuses and (status < 400 or code in got), got)

    def rss_mib(self):
        with open(f"/proc/{self.service.process.pid}/status", encoding="ascii") as file:
            return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmRSS"))


def heads(abuse):
    get = b"GET /v1/runs HTTP/1.1\r\nhost: x\r\n"
    for what, text, statuses in [
        ("many headers", get + b"".join(b"x-%d: y\r\n" % number for number in range(150)) + b"\r\n", (431,)),
        ("very many headers", get + b"".join(b"x-%d: y\r\n" % number for number in range(5000)) + b"\r\n", (431, 400)),
        ("a large header", get + b"x: " + b"y" * 70_000 + b"\r\n\r\n", (431,)),
        ("a huge header", get + b"x: " + b"y" * (3 * MIB) + b"\r\n\r\n", (431,)),
        ("a long path", b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n", (414,)),
        ("a very long path", b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n", (414, 431, 400)),
        ("a control character in a header", get + b"x: \x01\x02\r\n\r\n", (400, 200)),
    ]:
        # What is no request that can be read is refused below the routes, with a status alone.
        below = what.startswith(("very", "a huge", "a very", "a control"))
        abuse.tells(what, text, statuses, b"" if below else b'"error_code"')
    for what, text in [
        ("no HTTP at all", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20),
        ("words", b"hello, is this the service?\r\n\r\n"),
        ("two lengths", b"POST /v1/runs HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}"),
        ("length and chunks", b"POST /v1/runs HTTP/1.1\r\nhost: x\r\ncontent-length: 40\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n"),
        ("a broken chunk", b"POST /v1/runs HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"),
        ("an unknown version", b"GET / HTTP/9.9\r\n\r\n"),
        ("HTTP/2 without asking", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    ]:
        raw = Raw(abuse.port, text, timeout=6)
        got = raw.answer()
        raw.close()
        abuse.must(what, not got or got.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4", b"HTTP/1.1 505", b"\x00\x00")), got)


def paths(abuse):
    for path in ["/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/v1/runs/..%2f..%2fetc%2fpasswd", "/v1//runs", "/v1/runs/%00", "/v1/runs/%ff%fe", "/%",
                 "/v1/runs/" + "a" * 4000, "/v1/files/..%2fjournal.db", "/v1/files/" + "%2e%2e%2f" * 20, "/V1/RUNS", "/v1/runs/'%20or%201=1--", "/v1/runs/x/events?after=-1",
                 "/v1/runs?cursor=%00", "/v1/runs?limit=99999999999999999999", "/v1/runs?status=%ff", "/v1/runs?since_ms=x", "/v1/runs?unknown=1", "/agents/slow/../../x", "/v1/runs/x/result?wait=nan",
                 "/v1/runs/x/result?wait=-1", "/v1/runs/x/result?wait=1e308", "/v1/agents/%20/call", "*", "/v1/runs/%F0%9F%90%99"]:
        abuse.tells(f"path {path}", b"GET " + path.encode() + b" HTTP/1.1\r\nhost: x\r\n\r\n", (400, 404, 405))
    for method in (b"PUT", b"PATCH", b"TRACE", b"CONNECT", b"BREW"):
        abuse.tells(f"method {method}", method + b" /v1/runs HTTP/1.1\r\nhost: x\r\n\r\n", (400, 404, 405, 501))


def bodies(abuse):
    chance = random.Random(1)
    good = b'{"workflow":"one","input":{"text":"x"}}'
    broken = [b"", b" ", b"{", b"}", b"[]", b"null", b"1", b'"x"', b"{'a':1}", b"\xff\xfe", b'{"workflow":"one","input":{"text":"\xff"}}', b"[" * 100_000, b'{"a":' * 50_000,
              b'{"workflow":1e999}', b'{"workflow":"one","input":{"text":1}}', b'{"workflow":"one","input":{"text":"\\ud800"}}', b'{"workflow":"one","input":[]}', b'{"workflow":"one","x":1}',
              b'{"workflow":"one","input":{"text":"x"},"deadline_ms":-1}', b'{"workflow":"one","input":{"text":"x"},"deadline_ms":0}', b'{"workflow":"one","workflow":"one"}',
              b'{"workflow":"one","input":{"text":"x"}}trailing', b'{"workflow":"one","input":{"text":"x","photos":[{"file_id":"/etc/passwd"}]}}', b"NaN", b"\x00" * 100]
    broken += [good[:cut] for cut in range(1, len(good))]
    for _ in range(100):
        bent = bytearray(good)
        bent[chance.randrange(len(bent))] = chance.randrange(0, 32)
        broken.append(bytes(bent))
    for path in (b"/v1/runs", b"/v1/agents/slow/call", b"/v1/chat/completions", b"/v1/embeddings"):
        for body in broken if path == b"/v1/runs" else broken[:14]:
            abuse.tells(f"{path.decode()} with {body[:60]!r}", post(path, body), (400, 404, 422))
        abuse.tells(f"{path.decode()} too large, as it says", post(path, b"x", length=50 * MIB), (413,))
        chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        chunks = b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n" % path + chunk * 40
        abuse.tells(f"{path.decode()} too large, in pieces", chunks, (413,))
        abuse.tells(f"{path.decode()} of another kind", post(path, good).replace(b"application/json", b"text/plain"), (415,))
        abuse.tells(f"{path.decode()} compressed", post(path, good, b"content-encoding: gzip\r\n"), (415,))
    form = b"POST /v1/files HTTP/1.1\r\nhost: x\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s"
    for what, kind, body, statuses in [
        ("a form without a boundary", b"multipart/form-data", b"x", (400,)),
        ("a form that ends early", b"multipart/form-data; boundary=b", b"--b\r\ncontent-disposition: form-data; name=a; filename=a\r\n\r\nx", (400,)),
        ("a form of nothing", b"multipart/form-data; boundary=b", b"--b--\r\n", (400,)),
        ("a part without a name", b"multipart/form-data; boundary=b", b"--b\r\n\r\nx\r\n--b--\r\n", (400,)),
        ("a part with endless headers", b"multipart/form-data; boundary=b", b"--b\r\n" + b"x: y\r\n" * 20_000, (400, 413)),
        ("a large file", b"application/octet-stream", b"x" * 3_000_000, (413,)),
        ("an empty file", b"application/octet-stream", b"", (400,)),
    ]:
        abuse.tells(what, form % (kind, len(body), body), statuses)


class Asking(threading.Thread):
    """Asks what must always be answered, and keeps how long it took."""

    def __init__(self, abuse):
        super().__init__(daemon=True)
        self.abuse, self.taken, self.stop = abuse, [], threading.Event()

    def run(self):
        while not self.stop.is_set():
            for path in ("/healthz", "/v1/runs?limit=5", "/v1/agents"):
                began = time.perf_counter()
                try:
                    status = self.abuse.service.request("GET", path, timeout=10)[0]
                except OSError as error:
                    status = error
                self.taken.append(time.perf_counter() - began)
                self.abuse.must(f"{path} while all is full", status == 200, status)
            time.sleep(0.02)


def all_full(abuse, agents, watchers):
    """Calls, bodies, slow senders and watchers at their caps, at the same time."""
    asking = Asking(abuse)
    agents.slow_s = (20.0, 20.0)
    status, _, run = abuse.service.request("POST", "/v1/runs", {"workflow": "one", "input": {"text": "x"}})
    assert status == 202, (status, run)
    held = [Raw(abuse.port, post(b"/v1/agents/slow/call", b'{"input":{}}')) for _ in range(4)]
    time.sleep(0.3)
    asking.start()
    abuse.tells("one call more", post(b"/v1/agents/slow/call", b'{"input":{}}'), (503, 429), b"LOAD_SHED")
    began = time.time()
    watching = [Raw(abuse.port, f"GET /v1/runs/{run['run_id']}/events HTTP/1.1\r\nhost: x\r\n\r\n".encode(), 30) for _ in range(watchers)]
    heard = sum(raw.socket.recv(15).startswith(b"HTTP/1.1 200") for raw in watching)
    abuse.must("watchers", heard == watchers, heard)
    print(f"{heard} watchers of one run in {time.time() - began:.1f} s, {abuse.rss_mib():.0f} MiB", flush=True)
    abuse.tells("one watcher more", f"GET /v1/runs/{run['run_id']}/events HTTP/1.1\r\nhost: x\r\n\r\n".encode(), (503, 429), b"LOAD_SHED")
    slow = [Raw(abuse.port, b"GET /v1/runs HTTP/1.1\r\nhost: ") for _ in range(60)]
    slow += [Raw(abuse.port, post(b"/v1/runs", b'{"workflow":', length=900_000)) for _ in range(60)]
    uploads = [Raw(abuse.port, b"POST /v1/files HTTP/1.1\r\nhost: x\r\ncontent-type: a/b\r\ncontent-length: 900000\r\n\r\nx") for _ in range(2)]
    time.sleep(0.3)
    abuse.tells("one upload more", b"POST /v1/files HTTP/1.1\r\nhost: x\r\ncontent-type: a/b\r\ncontent-length: 1\r\n\r\nx", (503, 429), b"LOAD_SHED")
    full = [Raw(abuse.port, post(b"/v1/runs", b"x" * 890_000, length=900_000)) for _ in range(8)]
    time.sleep(0.3)
    abuse.tells("one body more than there is room for", post(b"/v1/runs", b" " * 900_000), (503, 429, 400))
    for what, group, some in [("heads", slow[:60], (b"408", b"")), ("bodies", slow[60:], (b"408",)), ("uploads", uploads, (b"408",))]:
        ended = [raw.answer() for raw in group]
        abuse.must(f"slow {what} are given up", all(any(part in got[:40] for part in some) for got in ended), ended[0])
    print(f"slow senders were given up, {abuse.rss_mib():.0f} MiB", flush=True)
    asking.stop.set()
    asking.join()
    taken = sorted(asking.taken)
    print(f"{len(taken)} answers while all was full: median {taken[len(taken) // 2] * 1000:.1f} ms, slowest {taken[-1] * 1000:.0f} ms")
    abuse.must("answers while all is full are quick", len(taken) > 30 and taken[int(len(taken) * 0.95)] < 1.0, taken[-5:])
    for raw in held + watching + full:
        raw.close()


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--watertight", required=True)
    options.add_argument("--watchers", type=int, default=2000)
    options = options.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(65536, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    agents = Agents(slow_s=(0.0, 0.01))
    with tempfile.TemporaryDirectory() as folder:
        open(os.path.join(folder, "workflow.toml"), "w").write(WORKFLOW)
        open(os.path.join(folder, "watertight.toml"), "w").write(settings(agents.url, options.watchers))
        service = Service(os.path.abspath(options.watertight), folder).start().wait_ready()
        abuse = Abuse(service)
        print(f"{abuse.rss_mib():.0f} MiB at rest", flush=True)
        for kind in (heads, paths, bodies):
            began = time.time()
            kind(abuse)
            print(f"{kind.__name__}: {time.time() - began:.1f} s, {abuse.rss_mib():.0f} MiB", flush=True)
        all_full(abuse, agents, options.watchers)
        abuse.must("memory", abuse.rss_mib() < RSS_MAX_MIB, abuse.rss_mib())
        agents.slow_s = (0.0, 0.01)
        until = time.time() + 15
        while abuse.service.request("POST", "/v1/agents/slow/call", {"input": {}})[0] != 200 and time.time() < until:
            time.sleep(0.2)
        status, _, run = service.request("POST", "/v1/runs", {"workflow": "one", "input": {"text": "x"}})
        abuse.must("a run afterwards is accepted", status == 202, run)
        status, _, run = service.request("GET", f"/v1/runs/{run.get('run_id')}/result?wait=20")
        abuse.must("and ends", (status, run.get("status")) == (200, "completed"), run)
        print(f"{abuse.rss_mib():.0f} MiB afterwards")
        code = service.terminate()
        abuse.must("it stops well", code == 0 and "panicked" not in service.tail(), service.tail())
    for fault in abuse.faults[:40]:
        print("FAULT", fault)
    print(f"{len(abuse.faults)} faults")
    sys.exit(1 if abuse.faults else 0)


if __name__ == "__main__":
    main()
