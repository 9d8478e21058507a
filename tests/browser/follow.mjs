// The browser example in headless Chromium, through a restart of the service in the middle of a run.
//
//   BASE_URL=http://... node follow.mjs      a real service, restarted by RESTART (a command) once the run is under way
//   WELL= BASE_URL=... node follow.mjs       the same with a run that fails: the page says so in Korean
//   node follow.mjs                          against the small service below, which is closed and opened again
//
// Needs playwright-core (NODE_PATH or a node_modules beside), CHROMIUM (default /usr/bin/chromium). SCREENSHOT names a file to write.
import { execSync } from "node:child_process";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import assert from "node:assert/strict";

// Through `require`, which looks into NODE_PATH: the package lies outside the repository.
const { chromium } = createRequire(import.meta.url)("playwright-core");
const root = new URL("../../", import.meta.url);
const file = (path) => readFileSync(new URL(path, root));

// The pages, from an origin of their own: the service has to allow it.
const kinds = { html: "text/html", css: "text/css", js: "text/javascript" };
const pages = createServer((request, answer) => {
  const name = request.url === "/" ? "index.html" : request.url.slice(1);
  if (!/^[a-z]+\.(html|css|js)$/.test(name)) return answer.writeHead(404).end();
  answer.writeHead(200, { "content-type": `${kinds[name.split(".")[1]]}; charset=utf-8` }).end(file(`examples/browser/${name}`));
});
const listen = (server, port = Number(process.env.PAGE_PORT ?? 0)) =>
  new Promise((done) => server.listen(port, "127.0.0.1", () => done(server.address().port)));

// A service that knows one run of twelve events, sends them slowly, repeats two on every reconnect and says so when it stops. Its first answer
// to each question but the events is that it is busy, and no token is good for a second connection.
function fake() {
  const events = [["run.started"], ["step.started", "photos"], ["step.finished", "photos"], ["step.started", "style"], ["step.finished", "style"],
    ["step.started", "draft"], ["step.refused", "draft", { error: { user_message: "글쓰기 도우미가 잠시 쉬고 있습니다." } }], ["step.started", "draft"],
    ["step.finished", "draft"], ["step.started", "meta"], ["step.finished", "meta"], ["run.finished"]]
    .map(([type, step, data], index) => ({ id: index + 1, ts_ms: 0, type, run_id: "r1", step: step ?? null, data: data ?? {} }));
  const heard = { runs: 0, connections: [], photos: 0, given: 0, tokens: [] };
  const asked = new Set();
  const open = new Set();
  const stop = () => open.forEach((answer) => answer.end('retry: 1000\nevent: node.stopping\ndata: {"type":"node.stopping","run_id":"r1","data":{}}\n\n'));
  const serve = (request, answer) => {
    const cors = { "access-control-allow-origin": "*", "access-control-allow-headers": "authorization, idempotency-key, last-event-id", "access-control-allow-methods": "GET, POST" };
    const json = (status, body) => answer.writeHead(status, { ...cors, "content-type": "application/json" }).end(JSON.stringify(body));
    if (request.method === "OPTIONS") return answer.writeHead(204, cors).end();
    const question = request.url.replace(/\?.*/, "");
    if (!question.endsWith("/events") && !asked.has(question)) {
      asked.add(question);
      return request.resume().on("end", () => json(503, { error: { retryable: true, user_message: "바쁩니다." } }));
    }
    if (request.url === "/v1/runs") {
      const pieces = [];
      request.on("data", (piece) => pieces.push(piece)).on("end", () => {
        heard.runs += 1;
        heard.photos = Buffer.concat(pieces).toString("latin1").split('name="photos"; filename=').length - 1;
        json(202, { run_id: "r1" });
      });
    } else if (request.url.endsWith("/watch-token")) json(200, { token: `watch-${(heard.given += 1)}` });
    else if (request.url.endsWith("/events")) {
      const after = Number(request.headers["last-event-id"]);
      heard.connections.push(after);
      if (heard.tokens.includes(request.headers.authorization)) return json(401, {});
      open.add(answer);
      heard.tokens.push(request.headers.authorization);
      answer.writeHead(200, { ...cors, "content-type": "text/event-stream" });
      let next = Math.max(0, after - 2);
      const timer = setInterval(() => {
        const event = events[next++];
        if (!event) return clearInterval(timer), answer.end();
        const frame = `id: ${event.id}\nevent: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`;
        answer.write(frame.slice(0, 20));
        setTimeout(() => answer.write(frame.slice(20)), 5);
      }, 60);
      answer.on("close", () => (open.delete(answer), clearInterval(timer)));
    } else json(200, { status: "completed", output: { markdown: "# 바다\n\n하루를 걸었다." }, error: null });
  };
  return { events, heard, serve, stop };
}

const scripted = process.env.BASE_URL ? null : fake();
const endsWell = process.env.WELL !== "";
let service = scripted && createServer(scripted.serve);
const port = scripted && (await listen(service, 0));
const base = process.env.BASE_URL ?? `http://127.0.0.1:${port}`;
async function restart() {
  if (!scripted) return execSync(process.env.RESTART, { stdio: "inherit" });
  scripted.stop();
  await new Promise((done) => setTimeout(done, 100));
  service.closeAllConnections();
  await new Promise((done) => service.close(done));
  await new Promise((done) => setTimeout(done, 700));
  service = createServer(scripted.serve);
  await listen(service, port);
}

const flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: flags });
try {
  const page = await browser.newPage({ locale: "ko-KR", viewport: { width: 900, height: 1000 } });
  const mistakes = [];
  page.on("pageerror", (error) => mistakes.push(error.message));
  // What the page shows is noted as it comes: every event has its line or its number.
  await page.addInitScript(() => {
    window.seen = [];
    addEventListener("DOMContentLoaded", () => {
      // The old value of each change, so that none is missed where several come at once; the newest is read at the end.
      new MutationObserver((records) => window.seen.push(...records.map((record) => Number(record.oldValue))))
        .observe(document.getElementById("status"), { attributeFilter: ["data-last"], attributeOldValue: true });
    });
  });
  await page.goto(`http://127.0.0.1:${await listen(pages)}/`);
  await page.setInputFiles("[name=photos]", ["01-tumuli.jpg", "02-observatory.jpg"].map((name) => new URL(`examples/momently/input/photos/${name}`, root).pathname));
  await page.fill("[name=notes]", "바다를 걸었다.");
  await page.evaluate(([base, key]) => { document.forms[0].base.value = base; document.forms[0].key.value = key; }, [base, process.env.API_KEY ?? ""]);
  await page.click("button");
  await page.waitForFunction(() => document.getElementById("status").dataset.last >= 3, null, { timeout: 60_000 });
  await restart();
  const bound = { timeout: Number(process.env.BOUND_MS ?? 60_000) };
  if (endsWell) {
    await page.waitForSelector("#post:not([hidden])", bound);
    assert.match(await page.textContent("#post"), /^# /);
  } else {
    await page.waitForFunction(() => document.getElementById("bar").value === 1, null, bound);
    assert.match(await page.textContent("#problem"), /^[^A-Za-z]*[가-힣][^A-Za-z]*$/, "a message for a screen, in Korean");
    assert.ok(await page.isHidden("#post"));
  }
  assert.deepEqual(mistakes, []);
  assert.match(await page.textContent("#status"), /끝났습니다/);
  const last = await page.evaluate(() => Number(document.getElementById("status").dataset.last));
  if (scripted) {
    assert.equal(await page.textContent("#problem"), "글쓰기 도우미가 잠시 쉬고 있습니다.");
    assert.equal(last, scripted.events.length);
    assert.equal(await page.locator("#steps li").count(), scripted.events.filter((event) => event.step).length, "each event once");
    assert.equal(scripted.heard.runs, 1);
    assert.equal(scripted.heard.photos, 2);
    assert.ok(scripted.heard.connections.length >= 2 && scripted.heard.connections.at(-1) >= 3, `${scripted.heard.connections}`);
    assert.ok(scripted.heard.tokens.every((token) => /^Bearer watch-\d+$/.test(token)));
  } else {
    // What the service has written down, line by line.
    const headers = { authorization: `Bearer ${process.env.API_KEY ?? ""}` };
    const [{ run_id }] = (await (await fetch(`${base}/v1/runs?limit=1`, { headers })).json()).data;
    const text = await (await fetch(`${base}/v1/runs/${run_id}/events`, { headers })).text();
    const events = [...text.matchAll(/^data: ?(.*)$/gm)].map(([, json]) => JSON.parse(json)).filter((event) => event.id);
    const said = { "step.started": "시작", "step.retried": "다시 시도", "step.refused": "대기", "step.degraded": "대체", "step.skipped": "건너뜀", "step.finished": "완료" };
    const wanted = events.filter((event) => event.step && said[event.type]).map((event) => `${event.step}: ${event.data.status === "failed" ? "실패" : said[event.type]}`);
    assert.deepEqual(await page.locator("#steps li").allTextContents(), wanted);
    assert.equal(last, events.length);
  }
  const seen = await page.evaluate(() => window.seen);
  assert.deepEqual([...seen, last], Array.from({ length: last + 1 }, (_, id) => id), "events were lost or doubled");
  if (process.env.SCREENSHOT) await page.screenshot({ path: process.env.SCREENSHOT, fullPage: true });
  console.log(`browser: ${last} events over a restart, none lost, none doubled`);
} finally {
  await browser.close();
  pages.close();
  service?.closeAllConnections();
  service?.close();
}
