//! Processes that end without warning, while the others serve.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::Signal;
use testing::client::Client;
use testing::process::{Address, wait_until};

use super::super::wait_for_waiting;
use super::{AT_0, AT_1, Multi, PATIENT, ask, put_into, reserved, watch};

/// Producers that put into tubes of both owners and connect again whenever they are closed.
struct Load {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicUsize>,
    producers: Vec<JoinHandle<Vec<(u64, String)>>>,
}

impl Load {
    fn begin(multi: &Multi, round: usize) -> Self {
        let Address::Tcp(address) = *multi.server.address() else { panic!("a port") };
        let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let producers = (0..2).map(|producer| {
            let (stop, acknowledged) = (Arc::clone(&stop), Arc::clone(&acknowledged));
            std::thread::spawn(move || {
                let names = [AT_0, AT_1].concat();
                let mut jobs = Vec::new();
                let mut tries = 0;
                while !stop.load(Ordering::Relaxed) {
                    // No server for a moment, or closed while something was under way: again.
                    let _ = (|| -> std::io::Result<()> {
                        let mut stream = TcpStream::connect(address)?;
                        stream.set_nodelay(true)?;
                        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
                        let mut replies = BufReader::new(stream.try_clone()?);
                        while !stop.load(Ordering::Relaxed) {
                            let tube = names[tries % names.len()];
                            tries += 1;
                            let body = format!("{round}.{producer}.{tries}");
                            let bytes = body.len();
                            write!(stream, "use {tube}\r\nput 0 0 600 {bytes}\r\n{body}\r\n")?;
                            let mut lines = [String::new(), String::new()];
                            for line in &mut lines {
                                if replies.read_line(line)? == 0 {
                                    return Ok(());
                                }
                            }
                            assert_eq!(lines[0], format!("USING {tube}\r\n"));
                            let id = lines[1].strip_prefix("INSERTED ").and_then(|id| id.trim().parse().ok());
                            jobs.push((id.unwrap_or_else(|| panic!("{:?}", lines[1])), body));
                            acknowledged.fetch_add(1, Ordering::Relaxed);
                        }
                        Ok(())
                    })();
                }
                jobs
            })
        });
        Self { stop: Arc::clone(&stop), acknowledged: Arc::clone(&acknowledged), producers: producers.collect() }
    }

    /// Waits until so many more puts are acknowledged.
    #[track_caller]
    fn wait_for_more(&self, count: usize) {
        let before = self.acknowledged.load(Ordering::Relaxed);
        wait_until("more puts are acknowledged", || self.acknowledged.load(Ordering::Relaxed) >= before + count);
    }

    /// Ends it and returns what was acknowledged: ids and bodies.
    #[track_caller]
    fn end(self) -> Vec<(u64, String)> {
        self.stop.store(true, Ordering::Relaxed);
        self.producers.into_iter().flat_map(|producer| producer.join().expect("a producer")).collect()
    }
}

/// Checks that all these jobs are there, as they were put.
#[track_caller]
fn check_all(multi: &Multi, jobs: &[(u64, String)]) {
    let input: String = jobs.iter().map(|(id, _)| format!("peek {id}\r\n")).collect();
    let expected: String = jobs.iter().map(|(id, body)| format!("FOUND {id} {}\r\n{body}\r\n", body.len())).collect();
    multi.server.check(input, expected);
}

#[test]
fn an_owner_killed_under_load_comes_back_with_every_acknowledged_job() {
    // S21, S32, GT1, GT4, GT7.
    let multi = Multi::start_with_log(&[&["--owner-wait", "60s"], &PATIENT[..]].concat());
    let before = multi.slots();
    let load = Load::begin(&multi, 0);
    for _ in 0..3 {
        load.wait_for_more(100);
        let killed = multi.kill("owner", 1);
        multi.wait_for_next(&killed);
    }
    load.wait_for_more(100);
    let jobs = load.end();
    check_all(&multi, &jobs);
    // One put in hand at each kill may be there or not; none is there twice.
    let mut client = multi.connect();
    let ready: usize = client.stat("stats", "current-jobs-ready").parse().expect("a number");
    assert!((jobs.len()..=jobs.len() + 6).contains(&ready), "{ready} ready, {} acknowledged", jobs.len());
    let mut ids: Vec<u64> = jobs.iter().map(|(id, _)| *id).collect();
    ids.sort_unstable();
    assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "an id was given twice");
    // Only that slot was started again, and its generation stands on disk.
    let after = multi.slots();
    for (before, after) in before.iter().zip(&after) {
        let restarts = if (&*before.role, before.number) == ("owner", 1) { 3 } else { 0 };
        assert_eq!(after.generation, before.generation + restarts, "{after:?}");
        assert_eq!(after.pid == before.pid, restarts == 0, "{after:?}");
    }
    let file = std::fs::read_to_string(multi.data().join("logs-1/slot-1/generation")).expect("the generation");
    assert_eq!(file.trim(), after[1].generation.to_string());
}

#[test]
fn the_end_of_an_owner_closes_those_who_depend_on_it_and_nobody_else() {
    // S21, S32, S33, T16, GT7.
    let multi = Multi::start_with_log(&[&["--owner-wait", "60s"], &PATIENT[..]].concat());
    let mut producer = multi.connect();
    let (left, right) = (put_into(&mut producer, "left", 0, "l"), put_into(&mut producer, "right", 0, "r"));
    for frontend in [0, 1] {
        let (mut holder, mut other) = (multi.connect_to(frontend), multi.connect_to(frontend));
        let (mut waits_there, mut waits_everywhere) = (multi.connect_to(frontend), multi.connect_to(frontend));
        holder.check(format!("reserve-job {right}\r\n"), format!("RESERVED {right} 1\r\nr\r\n"));
        other.check(format!("reserve-job {left}\r\n"), format!("RESERVED {left} 1\r\nl\r\n"));
        other.check("use two\r\nwatch jobs\r\n", "USING two\r\nWATCHING 2\r\n");
        waits_there.check("watch jobs\r\nignore default\r\n", "WATCHING 2\r\nWATCHING 1\r\n");
        waits_there.send("reserve\r\n");
        watch(&mut waits_everywhere, &["one", "jobs"]);
        waits_everywhere.send("reserve\r\n");
        wait_for_waiting(&mut producer, 2);
        let killed = multi.kill("owner", 1);
        holder.expect_end();
        waits_there.expect_end();
        multi.wait_for_next(&killed);
        // Its job is ready again, and a new connection finds it; the rights to it are gone with the old one.
        let mut next = multi.connect();
        next.check(
            format!("touch {right}\r\nrelease {right} 0 0\r\nbury {right} 0\r\n"),
            "NOT_FOUND\r\nNOT_FOUND\r\nNOT_FOUND\r\n",
        );
        next.check_stats(&format!("stats-job {right}"), &[("state", "ready"), ("tube", "\"right\"")]);
        // The other keeps its job, what it uses and what it watches.
        other.check(format!("touch {left}\r\n"), "TOUCHED\r\n");
        let in_two = other.put(0, 0, 60, b"x");
        other.check(format!("peek-ready\r\ndelete {in_two}\r\n"), format!("FOUND {in_two} 1\r\nx\r\nDELETED\r\n"));
        assert_eq!(other.text("list-tubes-watched"), "---\n- default\n- jobs\n");
        other.check(format!("release {left} 0 0\r\n"), "RELEASED\r\n");
        // The wait went on with the other owner, and asks this one again.
        let job = put_into(&mut producer, if frontend == 0 { "jobs" } else { "one" }, 0, "w");
        assert_eq!(reserved(&mut waits_everywhere), (job, "w".to_owned()));
        waits_everywhere.check(format!("delete {job}\r\n"), "DELETED\r\n");
    }
    multi.connect().check(format!("delete {right}\r\ndelete {left}\r\n"), "DELETED\r\nDELETED\r\n");
}

#[test]
fn without_a_log_only_the_jobs_of_the_killed_owner_are_lost() {
    // S21, S32, GT4.
    let multi = Multi::start_with(&[&["--owner-wait", "60s"], &PATIENT[..]].concat());
    let mut client = multi.connect();
    let (left, right) = (put_into(&mut client, "left", 0, "l"), put_into(&mut client, "right", 0, "r"));
    let killed = multi.kill("owner", 1);
    multi.wait_for_next(&killed);
    let mut client = multi.connect();
    client.check(format!("peek {left}\r\npeek {right}\r\n"), format!("FOUND {left} 1\r\nl\r\nNOT_FOUND\r\n"));
    let again = put_into(&mut client, "right", 0, "r");
    assert!(again > right && again % 64 == right % 64, "{again} after {right}");
    client.check_stats("stats", &[("current-jobs-ready", "2"), ("total-jobs", "3")]);
}

#[test]
fn commands_for_an_owner_that_is_away_wait_for_it() {
    // T16, S33.
    let multi = Multi::start_with_log(&["--owner-wait", "60s", "--restart-delay", "1s"]);
    let mut clients = [multi.connect_to(0), multi.connect_to(1)];
    let job = put_into(&mut multi.connect(), "right", 0, "r");
    let killed = multi.kill("owner", 1);
    let [a, b] = &mut clients;
    a.send(format!("peek {job}\r\nlist-tubes\r\n"));
    b.send("use two\r\nput 0 0 60 1\r\nx\r\n");
    // Meanwhile the other owner serves, and figures need nobody.
    let mut other = multi.connect();
    let left = put_into(&mut other, "left", 0, "l");
    other.check(format!("delete {left}\r\n"), "DELETED\r\n");
    other.text("stats");
    a.expect(format!("FOUND {job} 1\r\nr\r\nOK "));
    let rest = a.line();
    let listed = a.read(rest.parse().expect("a count of bytes"));
    let listed = String::from_utf8(listed).expect("names");
    assert!(listed.contains("- default\n") && listed.contains("- right\n"), "{listed}");
    b.expect("USING two\r\nINSERTED ");
    assert_eq!(b.line().parse::<u64>().expect("an id") % 64 % 2, 1);
    multi.wait_for_next(&killed);
}

#[test]
fn new_clients_are_served_though_a_frontend_has_failed() {
    // S9, T3: a frontend that is not there has no share of the clients.
    const CLIENTS: usize = 100;
    let multi = Multi::start_with(&["--restart-limit", "0/3600"]);
    multi.kill("frontend", 1);
    wait_until("the slot has failed", || multi.slot("frontend", 1).condition == "failed");
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| multi.connect()).collect();
    for client in &mut clients {
        client.check("list-tube-used\r\n", "USING default\r\n");
    }
    assert_eq!(clients[0].stat("stats", "current-connections"), CLIENTS.to_string());
}

#[test]
fn commands_for_a_failed_slot_are_refused_and_never_said_to_find_nothing() {
    // S7, S33, S37, T16; an operator can have it tried again.
    let mut multi = Multi::start_with_log(&["--owner-wait", "100ms", "--restart-limit", "0/3600"]);
    let mut client = multi.connect();
    let (left, right) = (put_into(&mut client, "left", 0, "l"), put_into(&mut client, "right", 0, "r"));
    multi.kill("owner", 1);
    wait_until("the slot has failed", || multi.slot("owner", 1).condition == "failed");
    for frontend in [0, 1] {
        let mut client = multi.connect_to(frontend);
        for command in [
            format!("peek {right}"),
            format!("delete {right}"),
            format!("reserve-job {right}"),
            format!("stats-job {right}"),
            "stats-tube right".to_owned(),
            "list-tubes".to_owned(),
            "use right".to_owned(),
        ] {
            assert_eq!(client.ask(&command), "INTERNAL_ERROR", "{command}");
        }
        client.check(format!("peek {left}\r\n"), format!("FOUND {left} 1\r\nl\r\n"));
        let more = put_into(&mut client, "one", 0, "x");
        client.check(format!("delete {more}\r\n"), "DELETED\r\n");
        assert_eq!(client.stat("stats", "current-jobs-ready"), "2");
    }
    assert_eq!(multi.slot("owner", 0).condition, "ready");
    let socket = multi.data().join("status.sock");
    assert_eq!(ask(&socket, "restart-slot owner 1").as_deref(), Some("ok\n"));
    wait_until("the slot serves", || multi.slot("owner", 1).condition == "ready");
    let both = format!("FOUND {right} 1\r\nr\r\nFOUND {left} 1\r\nl\r\n");
    wait_until("its jobs are there", || {
        multi.server.play(format!("peek {right}\r\npeek {left}\r\n")) == both.as_bytes()
    });
    assert_eq!(multi.server.terminate().code(), Some(0), "{}", multi.server.stderr());
}

#[test]
fn a_killed_frontend_gives_back_what_its_clients_held() {
    // S20, GT6: within a second, so here within ten.
    let multi = Multi::start_with(&PATIENT);
    for number in [0, 1] {
        let (mut lost, mut kept) = (multi.connect_to(number), multi.connect_to(1 - number));
        let mut waits = multi.connect_to(number);
        let held = [put_into(&mut lost, "left", 0, "l"), put_into(&mut lost, "right", 0, "r")];
        let own = put_into(&mut kept, "two", 0, "x");
        kept.check(format!("reserve-job {own}\r\n"), format!("RESERVED {own} 1\r\nx\r\n"));
        for (id, body) in held.iter().zip(["l", "r"]) {
            lost.check(format!("reserve-job {id}\r\n"), format!("RESERVED {id} 1\r\n{body}\r\n"));
        }
        watch(&mut waits, &["one", "jobs"]);
        waits.send("reserve\r\n");
        watch(&mut kept, &["left", "right", "one", "jobs"]);
        wait_for_waiting(&mut kept, 1);
        let killed = multi.kill("frontend", number);
        lost.expect_end();
        waits.expect_end();
        let mut again = Vec::new();
        for _ in held {
            kept.send("reserve-with-timeout 10\r\n");
            again.push(reserved(&mut kept).0);
        }
        again.sort_unstable();
        assert_eq!(again, held);
        // Its waits are gone too: the jobs go to those who live.
        for tube in ["one", "jobs"] {
            let id = put_into(&mut kept, tube, 0, "y");
            kept.send("reserve-with-timeout 10\r\n");
            assert_eq!(reserved(&mut kept).0, id);
            again.push(id);
        }
        kept.check(format!("touch {own}\r\ndelete {own}\r\n"), "TOUCHED\r\nDELETED\r\n");
        for id in again {
            kept.check(format!("delete {id}\r\n"), "DELETED\r\n");
        }
        multi.wait_for_next(&killed);
        wait_until("its clients are not counted", || kept.stat("stats", "current-connections") == "1");
        wait_until("their tubes are gone", || kept.stat("stats", "current-tubes") == "5");
        kept.check_stats("stats", &[("current-waiting", "0"), ("current-workers", "1")]);
        let mut next = multi.connect_to(number);
        let id = put_into(&mut next, "right", 0, "n");
        kept.check(format!("delete {id}\r\n"), "DELETED\r\n");
    }
    assert_eq!(multi.slots().iter().map(|slot| slot.generation).collect::<Vec<_>>(), [1, 1, 2, 2]);
}

#[test]
fn a_killed_supervisor_leaves_no_process_and_no_acknowledged_job_is_lost() {
    // S8, S23, S35, GT1, GT8: none is left after a second, so here after ten; also if one was stopped.
    let mut multi = Multi::start_with_log(&[]);
    let mut jobs = Vec::new();
    let mut generation = 1;
    for round in 0..4 {
        let load = Load::begin(&multi, round);
        load.wait_for_more(100);
        let children = multi.children();
        assert_eq!(children.len(), 4);
        if round % 2 == 1 {
            let owner = multi.slot("owner", 0).pid;
            let owner = children.iter().find(|child| Some(child.pid) == owner).expect("owner 0 is a child");
            owner.signal(Signal::STOP);
        }
        multi.server.kill();
        for child in &children {
            child.wait_for_end(Duration::from_secs(10));
        }
        jobs.extend(load.end());
        multi.start_again();
        check_all(&multi, &jobs);
        generation += 1;
        for number in [0, 1] {
            assert_eq!(multi.slot("owner", number).generation, generation);
        }
    }
    let mut client = multi.connect();
    let ready: usize = client.stat("stats", "current-jobs-ready").parse().expect("a number");
    assert!((jobs.len()..=jobs.len() + 8).contains(&ready), "{ready} ready, {} acknowledged", jobs.len());
    let last = jobs.iter().map(|(id, _)| *id).max().expect("some jobs");
    assert!(put_into(&mut client, "left", 0, "x") > last);
}

#[test]
fn one_after_the_other_all_processes_may_be_killed() {
    // S20, S21, S35.
    let multi = Multi::start_with_log(&[&["--owner-wait", "60s"], &PATIENT[..]].concat());
    let load = Load::begin(&multi, 0);
    for (role, number) in [("owner", 0), ("frontend", 1), ("owner", 1), ("frontend", 0), ("owner", 0), ("frontend", 1)]
    {
        load.wait_for_more(50);
        let killed = multi.kill(role, number);
        multi.wait_for_next(&killed);
    }
    load.wait_for_more(50);
    check_all(&multi, &load.end());
    // None is left over as a zombie.
    assert_eq!(multi.children().len(), 4);
    let mut clients: Vec<Client> = (0..2).map(|number| multi.connect_to(number)).collect();
    for client in &mut clients {
        let id = put_into(client, "right", 0, "x");
        client.check(format!("delete {id}\r\n"), "DELETED\r\n");
    }
}

#[test]
fn the_jobs_of_an_owner_that_is_away_are_counted_as_they_come_back() {
    // S21, S29: with a log what was reserved is ready; without one there is nothing.
    let away = ["--owner-wait", "60s", "--restart-delay", "5s"];
    for (multi, ready) in [(Multi::start_with_log(&away), "3"), (Multi::start_with(&away), "1")] {
        let mut client = multi.connect();
        let left = put_into(&mut client, "left", 2000, "l");
        let right = put_into(&mut client, "right", 2000, "r");
        put_into(&mut client, "two", 2000, "t");
        let mut holder = multi.connect();
        holder.check(format!("reserve-job {right}\r\n"), format!("RESERVED {right} 1\r\nr\r\n"));
        client.check_stats("stats", &[("current-jobs-ready", "2"), ("current-jobs-reserved", "1")]);
        let before = multi.kill("owner", 1);
        wait_until("the supervisor knows", || multi.slot("owner", 1).condition != "ready");
        assert_eq!(multi.slot("owner", 1).generation, before.generation, "it is back already");
        client.check_stats("stats", &[("current-jobs-ready", ready), ("current-jobs-reserved", "0")]);
        client.check(format!("peek {left}\r\n"), format!("FOUND {left} 1\r\nl\r\n"));
    }
}
