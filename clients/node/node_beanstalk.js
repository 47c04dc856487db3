// The whole life cycle with node-beanstalk: node node_beanstalk.js HOST PORT
"use strict";

const assert = require("node:assert/strict");
const { Client, Pool } = require("node-beanstalk");

let count = 0;
function same(got, expected, what) {
  count += 1;
  assert.deepEqual(got, expected, `${what}: expected ${JSON.stringify(expected)}, but got ${JSON.stringify(got)}`);
}

// One check: the promise is rejected with an error that names `word`.
async function refused(word, promise, what) {
  let result;
  try {
    result = await promise;
  } catch (error) {
    same(`${error.code ?? ""} ${error.message}`.includes(word), true, `${what}: ${error.message}`);
    return;
  }
  assert.fail(`${what}: expected ${word}, but it returned ${JSON.stringify(result)}`);
}

// Not early, and at most half a second late: ten times what the server promises on an idle machine.
function took(start, seconds, what) {
  const elapsed = (performance.now() - start) / 1000;
  same(elapsed >= seconds - 0.002 && elapsed <= seconds + 0.5, true, `${what} took ${elapsed} s`);
}

async function main(host, port) {
  const options = { host, port: Number(port), dataReadTimeoutMs: 60_000 };
  const [producer, worker] = [new Client(options), new Client(options)];
  await producer.connect();
  await worker.connect();

  // Tubes.
  same(await producer.use("work"), "work", "use");
  same(await producer.listTubeUsed(), "work", "list-tube-used");
  same(await worker.watch("work"), 2, "watch");
  same(await worker.ignore("default"), true, "ignore");
  same(await worker.ignore("work"), false, "ignore of the last");
  same(await worker.listTubesWatched(), ["work"], "list-tubes-watched");
  same(await producer.listTubes(), ["default", "work"], "list-tubes");
  same(await producer.statsTube("nowhere"), null, "stats of no tube");
  same(await producer.pauseTube("nowhere", 1), false, "pause of no tube");

  // Put and peek. Arguments are payload, ttr, priority, delay.
  const { id: one, ...first } = await producer.put({ number: 1 }, 90, 20, 0);
  same(first, { state: "ready" }, "put");
  const { id: two, ...second } = await producer.put("zwei ✓", 120, 10, 0);
  same(second, { state: "ready" }, "put");
  const { id: three, ...third } = await producer.put([3], 60, 10, 1000);
  same(third, { state: "delayed" }, "put with delay");
  same([one, two, three].every(Number.isSafeInteger) && one < two && two < three, true, "ids rise");
  same(await producer.peek(one), { id: one, payload: { number: 1 } }, "peek");
  same(await producer.peekReady(), { id: two, payload: "zwei ✓" }, "peek-ready");
  same(await producer.peekDelayed(), { id: three, payload: [3] }, "peek-delayed");
  same(await producer.peekBuried(), null, "peek-buried of none");
  same(await producer.peek(Number.MAX_SAFE_INTEGER), null, "peek of none");
  const job = await producer.statsJob(three);
  same(job["time-left"] > 990 && job["time-left"] <= 1000 && job.age < 60, true, "times");
  delete job["time-left"];
  delete job.age;
  same(job, {
    id: three, tube: "work", state: "delayed", pri: 10, delay: 1000, ttr: 60, file: 0,
    reserves: 0, timeouts: 0, releases: 0, buries: 0, kicks: 0,
  }, "stats-job");
  same(await producer.statsTube("work"), {
    name: "work", "current-jobs-urgent": 2, "current-jobs-ready": 2, "current-jobs-reserved": 0, "current-jobs-delayed": 1,
    "current-jobs-buried": 0, "total-jobs": 3, "current-using": 1, "current-watching": 1, "current-waiting": 0,
    "cmd-delete": 0, "cmd-pause-tube": 0, pause: 0, "pause-time-left": 0,
  }, "stats-tube");

  // Reserve, touch, release, bury, kick, delete.
  same(await worker.reserve(), { id: two, payload: "zwei ✓" }, "reserve");
  same(await worker.touch(two), true, "touch");
  same(await producer.touch(two), false, "touch by another");
  same(await producer.delete(two), false, "delete by another");
  same(await worker.release(two, 30, 0), "ready", "release");
  same(await worker.reserveWithTimeout(0), { id: one, payload: { number: 1 } }, "reserve after release");
  same(await worker.bury(one, 5), true, "bury");
  same(await producer.peekBuried(), { id: one, payload: { number: 1 } }, "peek-buried");
  same(await producer.kick(10), 1, "kick of the buried");
  same(await producer.kick(10), 1, "kick of the delayed");
  same(await producer.kick(10), 0, "kick of none");
  same((await worker.reserve()).id, one, "reserve of the kicked");
  same(await worker.release(one, 20, 1000), "delayed", "release with delay");
  same(await producer.kickJob(one), true, "kick-job");
  same(await producer.kickJob(one), false, "kick-job of a ready job");
  const order = [];
  for (let job; (job = await worker.reserveWithTimeout(0)) !== null; ) order.push(job.id);
  same(order, [three, one, two], "order");
  for (const id of order) same(await worker.delete(id), true, "delete");
  same(await worker.delete(one), false, "delete again");

  // Reserve by id, of a delayed job in a tube that is not watched.
  const { id: later } = await producer.put("later", 60, 0, 1000);
  const stranger = new Client(options);
  await stranger.connect();
  same(await stranger.reserveJob(later), { id: later, payload: "later" }, "reserve-job");
  same(await producer.reserveJob(later), null, "reserve-job again");
  await stranger.disconnect();
  same((await worker.reserveWithTimeout(10)).id, later, "reserve of what a close released");
  same(await worker.delete(later), true, "delete");

  // Timeouts, pause, deadline.
  let start = performance.now();
  same(await worker.reserveWithTimeout(1), null, "timeout");
  took(start, 1, "timeout of 1");
  const { id: short } = await producer.put("short", 1, 0, 0);
  start = performance.now();
  same(await producer.pauseTube("work", 1), true, "pause");
  same(await worker.reserveWithTimeout(0), null, "reserve of a paused tube");
  same((await worker.reserve()).id, short, "reserve after the pause");
  took(start, 1, "pause of 1");
  await refused("deadline", worker.reserve(), "ttr of 1");
  const other = new Client(options);
  await other.connect();
  await other.watch("work");
  same((await other.reserveWithTimeout(10)).id, short, "reserve of the expired");
  same((await other.statsJob(short)).timeouts, 1, "timeouts");
  same(await worker.delete(short), false, "delete of the expired");
  same(await other.delete(short), true, "delete");
  await other.disconnect();

  // Bodies: raw bytes, as large as allowed, and larger.
  const bytes = { serialize: (body) => body, deserialize: (body) => body };
  const raw = new Client({ ...options, serializer: bytes, maxPayloadSize: 70_000 });
  await raw.connect();
  await raw.use("raw");
  await raw.watch("raw");
  for (const body of [Buffer.from([...Array(256).keys()]), Buffer.from("\r\n".repeat(100)), Buffer.alloc(65_535, "x")]) {
    const { id } = await raw.put(body);
    const { payload } = await raw.reserveWithTimeout(0);
    same(Buffer.compare(payload, body), 0, `body of ${body.length} bytes`);
    same(await raw.delete(id), true, "delete");
  }
  await refused("JOB_TOO_BIG", raw.put(Buffer.alloc(65_536, "x")), "too big");
  same(await raw.listTubeUsed(), "raw", "connection after too big");

  // Many commands under way on one connection, and a pool.
  const numbers = [...Array(500).keys()];
  const puts = await Promise.all(numbers.map((number) => raw.put(Buffer.from(String(number)))));
  same(puts.slice(1).every(({ id }, at) => id > puts[at].id), true, "ids of queued puts rise");
  const deleted = await Promise.all(puts.map(({ id }) => raw.delete(id)));
  same(deleted.every(Boolean), true, "queued deletes");
  const pool = new Pool({ capacity: 5, clientOptions: options });
  const answers = await Promise.all(numbers.slice(0, 50).map(async () => {
    const client = await pool.connect();
    try {
      return await client.listTubeUsed();
    } finally {
      client.releaseClient();
    }
  }));
  same(answers.every((name) => name === "default"), true, "pool");
  await pool.disconnect();

  // Statistics and drain.
  const stats = await raw.stats();
  same(Object.keys(stats).length, 51, "number of keys");
  same(stats["total-jobs"], 508, "total-jobs");
  same([typeof stats.id, typeof stats.hostname, typeof stats.platform, typeof stats.pid], ["string", "string", "string", "number"], "types");
  process.kill(stats.pid, "SIGUSR1");
  const deadline = performance.now() + 60_000;
  while ((await raw.stats()).draining !== true) assert.ok(performance.now() < deadline, "draining");
  await refused("DRAINING", raw.put(Buffer.from("late")), "put while draining");

  for (const client of [producer, worker, raw]) await client.disconnect();
  console.log(`node-beanstalk: ${count} checks passed`);
}

main(process.argv[2], process.argv[3]).catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
