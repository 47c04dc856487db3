# The whole life cycle with beaneater: ruby beaneater.rb HOST PORT
#
# Debian's package ruby-beaneater 1.1.1 has the library only, no test suite.

require "beaneater"

$count = 0

def same(got, expected, what)
  $count += 1
  raise "#{what}: expected #{expected.inspect}, but got #{got.inspect}" unless got == expected
end

# One check: the block raises `kind`.
def refused(kind, what)
  $count += 1
  result = yield
rescue kind
  nil
else
  raise "#{what}: expected #{kind}, but it returned #{result.inspect}"
end

# One check: the put is answered with INSERTED and an id, which is returned as the text that the library gives.
def inserted(answer)
  same([answer[:status], answer[:id].to_i.to_s], ["INSERTED", answer[:id]], "put")
  answer[:id]
end

def now
  Process.clock_gettime(Process::CLOCK_MONOTONIC)
end

# Not early, and at most half a second late: ten times what the server promises on an idle machine.
def took(start, seconds, what)
  elapsed = now - start
  same(elapsed.between?(seconds, seconds + 0.5), true, "#{what} took #{elapsed} s")
end

address = "#{ARGV[0]}:#{ARGV[1]}"
producer = Beaneater.new(address)
worker = Beaneater.new(address)
work = producer.tubes["work"]

# Tubes.
producer.tubes.use("work")
worker.tubes.watch!("work")
same(producer.tubes.used.name, "work", "used")
same(worker.tubes.watched.map(&:name), ["work"], "watched")
same(producer.tubes.all.map(&:name), %w[default work], "all tubes")
refused(Beaneater::NotIgnoredError, "ignore of the last") { worker.tubes.ignore("work") }
worker.tubes.watched
refused(Beaneater::InvalidTubeName, "bad name") { worker.tubes.watch("-bad") }
refused(Beaneater::NotFoundError, "stats of no tube") { producer.tubes["nowhere"].stats }
refused(Beaneater::NotFoundError, "pause of no tube") { producer.tubes["nowhere"].pause(1) }

# Put and peek.
one = inserted(work.put("one", pri: 20, ttr: 90))
two = inserted(work.put("two", pri: 10, ttr: 120))
three = inserted(work.put("three", pri: 10, delay: 1000, ttr: 60))
ids = [one, two, three].map(&:to_i)
same(ids.uniq.sort, ids, "ids rise")
same(producer.jobs.find(one).body, "one", "peek")
same(producer.jobs.find(18_446_744_073_709_551_615), nil, "peek of none")
same(work.peek(:ready).id, two, "peek-ready")
same(work.peek(:ready).body, "two", "body of peek-ready")
same(work.peek(:delayed).id, three, "peek-delayed")
same(work.peek(:buried), nil, "peek-buried of none")
job = producer.jobs.find(three)
same([job.tube, job.pri, job.delay, job.ttr], ["work", 10, 1000, 60], "stats-job")
same([job.stats.state, job.stats.reserves, job.stats.file], ["delayed", 0, 0], "stats-job")
same(work.stats.current_jobs_ready, 2, "stats-tube")
same(work.stats.name, "work", "name in stats-tube")

# Reserve, touch, release, bury, kick, delete.
job = worker.tubes.reserve
same([job.id, job.body, job.reserved?], [two, "two", true], "reserve")
job.touch
refused(Beaneater::NotFoundError, "delete by another") { producer.jobs.find(two).delete }
job.release(pri: 30)
job = worker.tubes.reserve(0)
same(job.id, one, "reserve after release")
job.bury(pri: 5)
same(work.peek(:buried).id, one, "peek-buried")
same(work.kick(10)[:id], "1", "kick of the buried")
same(work.kick(10)[:id], "1", "kick of the delayed")
same(work.kick(10)[:id], "0", "kick of none")
job = worker.tubes.reserve(0)
same(job.id, one, "reserve of the kicked")
job.release(delay: 1000)
producer.jobs.find(one).kick
refused(Beaneater::NotFoundError, "kick-job of a ready job") { producer.jobs.find(one).kick }
jobs = Array.new(3) { worker.tubes.reserve(0) }
same(jobs.map(&:id), [one, three, two], "order")
jobs.each(&:delete)
refused(Beaneater::NotFoundError, "delete again") { jobs[0].delete }
same(jobs[0].exists?, false, "exists?")

# Timeouts, pause, deadline.
start = now
refused(Beaneater::TimedOutError, "timeout") { worker.tubes.reserve(1) }
took(start, 1, "timeout of 1")
short = inserted(work.put("short", ttr: 1))
same(short.to_i > three.to_i, true, "the id rises")
start = now
work.pause(1)
refused(Beaneater::TimedOutError, "reserve of a paused tube") { worker.tubes.reserve(0) }
same(worker.tubes.reserve.body, "short", "reserve after the pause")
took(start, 1, "pause of 1")
refused(Beaneater::DeadlineSoonError, "ttr of 1") { worker.tubes.reserve }
other = Beaneater.new(address)
job = other.tubes["work"].reserve(10)
same([job.id, job.stats.timeouts], [short, 1], "reserve of the expired")
other.close
job = worker.tubes.reserve(10)
same([job.id, job.stats.releases], [short, 0], "reserve of what a close released")
job.delete

# The library's own loop over jobs: what raises is buried, what asks for it is retried, and one ends the loop.
looping = Beaneater.new(address)
batch = looping.tubes["batch"]
%w[good bad again stop].each_with_index { |body, index| batch.put(body, pri: index) }
seen = []
looping.jobs.register("batch", retry_on: [IOError], max_retries: 1) do |job|
  seen << job.body
  raise ArgumentError if job.body == "bad"
  raise IOError if job.body == "again" && seen.count("again") == 1
  raise Beaneater::AbortProcessingError if job.body == "stop"
end
looping.jobs.process!(release_delay: 0, reserve_timeout: 10)
same(seen, %w[good bad again again stop], "processed")
same(batch.stats.current_jobs_buried, 2, "what raised is buried")
same(batch.peek(:buried).body, "bad", "the first buried")
batch.clear
same([batch.peek(:ready), batch.peek(:buried), batch.peek(:delayed)], [nil, nil, nil], "clear by peek and delete")
looping.close

# Bodies.
raw = producer.tubes["raw"]
worker.tubes.watch!("raw")
[(0..255).map(&:chr).join.b, "\r\n" * 100, "x" * 65_535].each do |body|
  raw.put(body)
  job = worker.tubes.reserve(0)
  same(job.body.b, body.b, "binary body")
  job.delete
end
refused(Beaneater::JobTooBigError, "too big") { raw.put("x" * 65_536) }
same(producer.tubes.used.name, "raw", "connection after too big")

# Statistics.
stats = producer.stats
same(stats.keys.size, 51, "number of keys")
same(stats.total_jobs, 11, "total-jobs")
same(stats.draining, false, "draining")
same([stats.id.class, stats.hostname.class, stats.version.class], [String, String, stats.version.class], "texts stay texts")
same(stats.id.size, 16, "id")
Process.kill(:USR1, stats.pid)
deadline = now + 60
raise "draining" if now > deadline until producer.stats["draining"] == true
# The library repeats such a put a second later, twice, and then closes its connection.
refused(Beaneater::DrainingError, "put while draining") { producer.tubes["raw"].put("late") }

worker.close
puts "beaneater: #{$count} checks passed"
