"""The whole life cycle with pystalk: pystalk_cycle.py HOST PORT"""

import os
import signal
import sys
import time

from checks import done, raises, same, took, true
from pystalk import BeanstalkClient, BeanstalkError

host, port = sys.argv[1], int(sys.argv[2])


def connect(**named):
    return BeanstalkClient(host, port, socket_timeout=60, auto_decode=True, **named)


def refused(word, function, *arguments, **named):
    """One check: the server refuses the call with `word`."""
    same(raises(BeanstalkError, word, function, *arguments, **named).message, word, function.__name__)


def inserted(answer, what):
    """One check: the put is answered with INSERTED; returns the id."""
    status, id = answer
    same((status, type(id)), (b"INSERTED", int), what)
    return id


producer, worker = connect(), connect()
same(producer.ping(), True, "ping")

# Tubes. Watching one tube ignores `default`, unconditionally.
producer.use("work")
worker.watch("work")
same(worker.watchlist, {"work"}, "watch list")
worker.watchlist = {"work", "other"}
same(sorted(producer.list_tubes()), ["default", "other", "work"], "tubes")
worker.watchlist = {"work"}
same(sorted(producer.list_tubes()), ["default", "work"], "tubes after ignore")
refused("NOT_FOUND", worker.stats_tube, "nowhere")
refused("NOT_FOUND", worker.pause_tube, "nowhere", 1)
refused("BAD_FORMAT", worker.stats_tube, "-bad")

# Put and peek. The answers are (status, id).
one = inserted(producer.put_job("one", pri=20, ttr=90), "put")
two = inserted(producer.put_job("two ✓", pri=10), "put")
three = inserted(producer.put_job("three", pri=10, delay=1000), "put")
with producer.using("elsewhere") as inserter:
    four = inserted(inserter.put_job("four"), "put elsewhere")
five = inserted(producer.put_job_into("elsewhere", "five"), "put into")
ids = [one, two, three, four, five]
same(sorted(set(ids)), ids, "ids rise")
same(sorted(producer.list_tubes()), ["default", "elsewhere", "work"], "tubes")
producer.use("work")
same(producer.peek_ready().job_id, two, "peek-ready")
same(producer.peek_ready().job_data, "two ✓", "body of peek-ready")
same(producer.peek_delayed().job_id, three, "peek-delayed")
refused("NOT_FOUND", producer.peek_buried)
job = producer.stats_job(three)
true(job.pop("age") < 60, "age")
true(990 < job.pop("time-left") <= 1000, "time-left")
same(job, {"id": three, "tube": "work", "state": "delayed", "pri": 10, "delay": 1000, "ttr": 120, "file": 0, "reserves": 0,
           "timeouts": 0, "releases": 0, "buries": 0, "kicks": 0}, "stats-job")
same(producer.stats_tube("work")["current-jobs-ready"], 2, "stats-tube")
same(producer.stats_tube("work")["name"], "work", "name in stats-tube")

# Reserve, release, bury, kick, delete.
job = worker.reserve_job(0)
same((job.job_id, job.job_data), (two, "two ✓"), "reserve")
refused("NOT_FOUND", producer.delete_job, two)
same(worker.release_job(two, pri=30), b"RELEASED", "release")
same(worker.reserve_job(5).job_id, one, "reserve")
same(worker.bury_job(one, pri=5), b"BURIED", "bury")
same(producer.peek_buried().job_id, one, "peek-buried")
same(producer.kick_jobs(10), (b"KICKED", 1), "kick of the buried")
same(producer.kick_jobs(10), (b"KICKED", 1), "kick of the delayed")
same(producer.kick_jobs(10), (b"KICKED", 0), "kick of none")
same(worker.reserve_job(0).job_id, one, "reserve of the kicked")
worker.release_job(one, delay=1000)
producer.kick_job(one)
refused("NOT_FOUND", producer.kick_job, one)
same([job.job_id for job in worker.reserve_iter()], [three, two, one], "reserve until nothing is left")
for id in (one, two, three):
    worker.delete_job(id)
refused("NOT_FOUND", worker.delete_job, one)

# Clearing a tube by peeking and deleting.
producer.use("elsewhere")
cleared = []
for job in producer.peek_ready_iter():
    cleared.append(job.job_id)
    producer.delete_job(job.job_id)
same(cleared, [four, five], "cleared")

# Timeouts, pause, deadline, close.
start = time.monotonic()
refused("TIMED_OUT", worker.reserve_job, 1)
took(start, 1, "timeout of 1")
producer.use("work")
paused = inserted(producer.put_job("paused", ttr=1), "put")
true(paused > five, "the id rises")
producer.pause_tube("work", 1000)
refused("TIMED_OUT", worker.reserve_job, 0)
producer.unpause_tube("work")
same(worker.reserve_job(0).job_id, paused, "reserve after the pause")
refused("DEADLINE_SOON", worker.reserve_job, 5)
other = connect()
other.watch("work")
same(other.reserve_job(10).job_id, paused, "reserve of the expired")
same(other.stats_job(paused)["timeouts"], 1, "timeouts")
other.close()
same(worker.reserve_job(10).job_id, paused, "reserve of what a close released")
same(worker.stats_job(paused)["releases"], 0, "a close is no release")
worker.delete_job(paused)

# Bodies.
refused("JOB_TOO_BIG", producer.put_job, "x" * 65536)
raw = BeanstalkClient(host, port, socket_timeout=60)
raw.use("raw")
raw.watch("raw")
for body in (b"", bytes(range(256)), b"\r\n" * 100, b"x" * 65535):
    raw.put_job(body)
    job = raw.reserve_job(0)
    same(job.job_data, body, "binary body")
    raw.delete_job(job.job_id)

# Statistics and drain.
stats = raw.stats()
same(stats["total-jobs"], 10, "total-jobs")
same(len(stats), 51, "number of keys")
same((stats["current-producers"], stats["current-workers"]), (2, 2), "producers and workers")
same([type(stats[key]) for key in ("id", "hostname", "os", "platform")], [str] * 4, "texts stay texts")
os.kill(stats["pid"], signal.SIGUSR1)
deadline = time.monotonic() + 60
while raw.stats()["draining"] is not True:
    true(time.monotonic() < deadline, "draining")
refused("DRAINING", raw.put_job, b"late")

for client in (producer, worker, raw):
    client.close()
done("pystalk")
