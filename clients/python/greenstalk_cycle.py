"""The whole life cycle with greenstalk: greenstalk_cycle.py HOST PORT"""

import os
import signal
import sys
import time

import greenstalk
from checks import done, raises, same, took, true

address = (sys.argv[1], int(sys.argv[2]))

producer = greenstalk.Client(address, use="work")
worker = greenstalk.Client(address, watch=["work"])

# Tubes.
same(producer.using(), "work", "using")
same(producer.watching(), ["default"], "watching of the producer")
same(worker.watching(), ["work"], "watching of the worker")
same(worker.using(), "default", "using of the worker")
same(producer.tubes(), ["default", "work"], "tubes")
same(worker.watch("work"), 1, "watch again")
same(worker.watch("other"), 2, "watch other")
same(worker.ignore("other"), 1, "ignore other")
raises(greenstalk.NotIgnoredError, "ignore the last", worker.ignore, "work")
raises(greenstalk.BadFormatError, "bad name", worker.watch, "-bad")
raises(greenstalk.NotFoundError, "stats of no tube", worker.stats_tube, "nowhere")
raises(greenstalk.NotFoundError, "pause of no tube", worker.pause_tube, "nowhere", 1)

# Put and peek.
first = producer.put("eins", priority=20, ttr=90)
second = producer.put("zwei ✓", priority=10, delay=0, ttr=120)
third = producer.put("drei", priority=10, delay=1000, ttr=60)
same(sorted({first, second, third}), [first, second, third], "ids rise")
same(producer.peek(first).body, "eins", "peek")
same(producer.peek_ready().id, second, "peek-ready")
same(producer.peek_ready().body, "zwei ✓", "body of peek-ready")
same(producer.peek_delayed().id, third, "peek-delayed")
raises(greenstalk.NotFoundError, "peek-buried of none", producer.peek_buried)
raises(greenstalk.NotFoundError, "peek of none", producer.peek, 18446744073709551615)
job = producer.stats_job(third)
true(job.pop("age") < 60, "age")
true(990 < job.pop("time-left") <= 1000, "time-left")
same(job, {"id": third, "tube": "work", "state": "delayed", "pri": 10, "delay": 1000, "ttr": 60, "file": 0, "reserves": 0,
           "timeouts": 0, "releases": 0, "buries": 0, "kicks": 0}, "stats-job")
tube = producer.stats_tube("work")
same(tube, {"name": "work", "current-jobs-urgent": 2, "current-jobs-ready": 2, "current-jobs-reserved": 0,
            "current-jobs-delayed": 1, "current-jobs-buried": 0, "total-jobs": 3, "current-using": 1, "current-watching": 1,
            "current-waiting": 0, "cmd-delete": 0, "cmd-pause-tube": 0, "pause": 0, "pause-time-left": 0}, "stats-tube")

# Reserve, touch, release, bury, kick, delete.
job = worker.reserve()
same((job.id, job.body), (second, "zwei ✓"), "reserve")
worker.touch(job)
raises(greenstalk.NotFoundError, "touch by another", producer.touch, job)
raises(greenstalk.NotFoundError, "delete by another", producer.delete, job)
worker.release(job, priority=30)
job = worker.reserve(timeout=0)
same(job.id, first, "reserve after release")
worker.bury(job, priority=5)
same(producer.peek_buried().id, first, "peek-buried")
same(producer.stats_job(first)["state"], "buried", "state")
same(producer.kick(10), 1, "kick of the buried")
same(producer.kick(10), 1, "kick of the delayed")
same(producer.kick(10), 0, "kick of none")
worker.release(worker.reserve(timeout=0), delay=1000)
producer.kick_job(first)
raises(greenstalk.NotFoundError, "kick-job of a ready job", producer.kick_job, first)
same([worker.reserve(timeout=0).id for _ in range(3)], [third, second, first], "order")
for id in (first, second, third):
    worker.delete(id)
raises(greenstalk.NotFoundError, "delete again", worker.delete, first)

# Reserve by id, also of a delayed job in a tube that is not watched.
id = producer.put("later", delay=1000)
stranger = greenstalk.Client(address)
same(stranger.reserve_job(id).body, "later", "reserve-job")
raises(greenstalk.NotFoundError, "reserve-job again", producer.reserve_job, id)
stranger.close()
deadline = time.monotonic() + 60
while producer.stats_job(id)["state"] != "ready":
    true(time.monotonic() < deadline, "released by the close")
same(worker.reserve(timeout=1).id, id, "reserve of what a close released")
worker.delete(id)

# Timeouts, pause, deadline.
start = time.monotonic()
raises(greenstalk.TimedOutError, "poll", worker.reserve, timeout=0)
took(start, 0, "poll")
start = time.monotonic()
raises(greenstalk.TimedOutError, "timeout", worker.reserve, timeout=1)
took(start, 1, "timeout of 1")
id = producer.put("paused", ttr=1)
start = time.monotonic()
producer.pause_tube("work", 1)
raises(greenstalk.TimedOutError, "reserve of a paused tube", worker.reserve, timeout=0)
same(worker.reserve().id, id, "reserve after the pause")
took(start, 1, "pause of 1")
raises(greenstalk.DeadlineSoonError, "ttr of 1", worker.reserve)
other = greenstalk.Client(address, watch="work")
same(other.reserve(timeout=10).id, id, "reserve of the expired")
same(other.stats_job(id)["timeouts"], 1, "timeouts")
raises(greenstalk.NotFoundError, "delete of the expired", worker.delete, id)
other.delete(id)
other.close()

# Bodies.
raw = greenstalk.Client(address, encoding=None, use="raw", watch="raw")
for body in (b"", bytes(range(256)), b"\r\n" * 100, b"x" * 65535):
    id = raw.put(body)
    same(raw.reserve(timeout=0).body, body, "binary body")
    raw.delete(id)
raises(greenstalk.JobTooBigError, "too big", raw.put, b"x" * 65536)
same(raw.using(), "raw", "connection after too big")

# Statistics and drain.
stats = raw.stats()
same(set(stats), set(greenstalk.Stats.__annotations__), "keys of stats")
same(stats["total-jobs"], 9, "total-jobs")
same(stats["draining"], "false", "draining")
same(len(stats["id"]), 16, "id")
true(isinstance(stats["pid"], int) and stats["uptime"] < 300, "pid and uptime")
os.kill(stats["pid"], signal.SIGUSR1)
deadline = time.monotonic() + 60
while raw.stats()["draining"] != "true":
    true(time.monotonic() < deadline, "draining")
raises(greenstalk.DrainingError, "put while draining", raw.put, b"late")

for client in (producer, worker, raw):
    client.close()
done("greenstalk")
