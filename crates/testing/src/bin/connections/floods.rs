//! Clients that ask for too much: too many connections a second, commands without reading, reading a byte a second.
//!
//! Owns: what such clients may cost the server in memory.
//! Never: measures how quick the server is; only that others are served and memory stays bounded.

use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use testing::client::Client;
use testing::process::wait_until;

use crate::rounds::{LONGEST_MAX, Rounds};
use crate::server::{Listen, Multi, TUBES};
use crate::{Arguments, Outcome, ensure, mib};

const MIB: u64 = 1 << 20;

/// A thousand connections a second, each with a command, for some seconds.
pub(crate) fn churn(arguments: &Arguments) -> Outcome {
    const CONNECTIONS: u32 = 5_000;
    const THREADS: u32 = 2;
    const A_SECOND: u32 = 1_000;
    let multi = Multi::start(arguments.executable(), 4, Listen::Tcp, &[]);
    let rounds = Rounds::begin(&multi, &TUBES);
    rounds.wait_for(20);
    let mut monitor = multi.connect();
    let total = |monitor: &mut Client| monitor.stat("stats", "total-connections").parse::<u32>().expect("a number");
    let (clients, connections) = (Multi::clients(&mut monitor), total(&mut monitor));
    let (descriptors, memory) = (multi.descriptors(), multi.memory());
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let multi = &multi;
            scope.spawn(move || {
                for number in (thread..CONNECTIONS).step_by(THREADS as usize) {
                    let due = begin + Duration::from_secs(1) * number / A_SECOND;
                    std::thread::sleep(due.saturating_duration_since(Instant::now()));
                    let mut client = multi.connect();
                    // A third each: answered and gone, gone without a wait for the answer, gone in the middle of a line.
                    match number % 3 {
                        0 => client.check("peek-ready\r\n", "NOT_FOUND\r\n"),
                        1 => client.send("reserve\r\n"),
                        _ => client.send("put 0 0 10 5\r\nhal"),
                    }
                }
            });
        }
    });
    let took = begin.elapsed();
    // Some may have gone before they were accepted.
    wait_until("each has been accepted", || total(&mut monitor) - connections >= CONNECTIONS);
    wait_until("they are gone", || Multi::clients(&mut monitor) == clients);
    let counted = total(&mut monitor) - connections;
    ensure(counted == CONNECTIONS, || format!("{CONNECTIONS} connections were counted as {counted}"))?;
    wait_until("descriptors are back", || multi.descriptors() == descriptors);
    let after = multi.memory();
    let grown = (after.of_frontends() + after.of_owners()).saturating_sub(memory.of_frontends() + memory.of_owners());
    ensure(grown <= 16 * MIB, || format!("{} are kept after {CONNECTIONS} connections", mib(grown)))?;
    let beside = rounds.end(LONGEST_MAX)?;
    drop(monitor);
    multi.finish()?;
    Ok(format!("{CONNECTIONS} in {took:.1?}, all counted, none left, {} kept; {beside}", mib(grown)))
}

/// A million commands by a client that reads nothing until the server reads nothing either.
pub(crate) fn pipeline(arguments: &Arguments) -> Outcome {
    const COMMANDS: usize = 1_000_000;
    /// Commands in one write.
    const CHUNK: usize = 1_000;
    /// Nothing more was taken for so long: the server has stopped reading this client.
    const STOPPED: Duration = Duration::from_secs(1);
    /// Promised are some 400 KiB of output, commands and input for the client, and 4 MiB and a turn for each of four links.
    const BYTES_MAX: u64 = 16 * MIB;
    let multi = Multi::start(arguments.executable(), 2, Listen::Tcp, &[]);
    let rounds = Rounds::begin(&multi, &TUBES);
    rounds.wait_for(20);
    let mut client = multi.connect();
    client.check("use video\r\n", "USING video\r\n");
    let body = [b'v'; 100];
    let id = client.put(0, 0, 600, &body);
    let job = format!("{id} 100\r\n{}\r\n", String::from_utf8_lossy(&body));
    let (descriptors, memory) = (multi.descriptors(), multi.memory());
    // All of one owner but `list-tube-used`, which the frontend answers: a change of owner would wait.
    let four = ["peek-ready\r\n", "list-tube-used\r\n", "peek-delayed\r\n", "peek 62\r\n"];
    let answers = format!("FOUND {job}USING video\r\nNOT_FOUND\r\nNOT_FOUND\r\n");
    let (chunk, answers) = (four.concat().repeat(CHUNK / 4), answers.repeat(CHUNK / 4));
    let sent = Arc::new(AtomicU64::new(0));
    let mut writer = std::fs::File::from(client.as_fd().try_clone_to_owned().expect("a second descriptor"));
    let thread = {
        let sent = sent.clone();
        std::thread::spawn(move || {
            for _ in 0..COMMANDS / CHUNK {
                let mut rest = chunk.as_bytes();
                while !rest.is_empty() {
                    // Waits while the server does not read.
                    match writer.write(rest) {
                        Ok(count) => {
                            sent.fetch_add(count as u64, Ordering::Relaxed);
                            rest = &rest[count..];
                        }
                        // The timeout of the socket: the reader decides when it has taken too long.
                        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                        Err(error) => return Err(error),
                    }
                }
            }
            Ok(())
        })
    };
    let (mut last, mut since) = (0, Instant::now());
    wait_until("the server stops reading a client that does not read", || {
        let now = sent.load(Ordering::Relaxed);
        if now != last {
            (last, since) = (now, Instant::now());
        }
        since.elapsed() >= STOPPED
    });
    ensure(!thread.is_finished(), || format!("{COMMANDS} commands were taken without an answer being read"))?;
    rounds.wait_for(50);
    let full = multi.memory();
    let grown = full.of_frontends().saturating_sub(memory.of_frontends());
    let at_owners = full.of_owners().saturating_sub(memory.of_owners());
    ensure(grown.max(at_owners) <= BYTES_MAX, || {
        format!("a client that does not read takes {} of frontends, {} of owners", mib(grown), mib(at_owners))
    })?;
    // Then it reads, and is told everything in order.
    for number in 0..COMMANDS / CHUNK {
        let told = client.read(answers.len());
        ensure(told == answers.as_bytes(), || format!("wrong answers in thousand {number}"))?;
    }
    thread.join().map_err(|_| "the writer panicked".to_owned())?.map_err(|error| error.to_string())?;
    let beside = rounds.end(LONGEST_MAX)?;
    client.check(format!("delete {id}\r\n"), "DELETED\r\n");
    drop(client);
    wait_until("descriptors are back", || {
        multi.descriptors().iter().zip(&descriptors).all(|(now, before)| now <= before)
    });
    multi.finish()?;
    Ok(format!(
        "not read any more after {}; {} more in frontends, {} in owners; then {COMMANDS} answers in order; {beside}",
        mib(last),
        mib(grown),
        mib(at_owners)
    ))
}

/// Clients that ask for jobs of 64 KiB, hundreds each, and read a byte a second.
pub(crate) fn slow_readers(arguments: &Arguments) -> Outcome {
    const READERS: usize = 16;
    const PEEKS: usize = 500;
    const SECONDS: u32 = 8;
    /// The largest body that is taken by default.
    const BODY: usize = 65_535;
    /// Both ends of the links: 4 MiB and a turn for each of four.
    const LINKS_BYTES_MAX: u64 = 4 * 2 * 4 * MIB;
    /// A frontend has 256 KiB of output for a reader, a reply, and 256 KiB of bodies on their way. The buffer grows by
    /// doubling, and the allocator keeps for a while what it has outgrown.
    const READER_BYTES_MAX: u64 = 4 * (256 + 64 + 256) * 1024;
    let multi = Multi::start(arguments.executable(), 2, Listen::Tcp, &[]);
    let rounds = Rounds::begin(&multi, &TUBES);
    rounds.wait_for(20);
    let mut monitor = multi.connect();
    let mut ids = Vec::new();
    for tube in ["left", "right"] {
        monitor.check(format!("use {tube}\r\n"), format!("USING {tube}\r\n"));
        ids.push(monitor.put(0, 0, 600, &vec![b'x'; BODY]));
    }
    // The job has been on each link once.
    for id in &ids {
        monitor.data(&format!("peek {id}"));
    }
    let (clients, memory) = (Multi::clients(&mut monitor), multi.memory());
    let mut readers: Vec<Client> = (0..READERS).map(|_| multi.connect()).collect();
    for (number, reader) in readers.iter_mut().enumerate() {
        reader.send(format!("peek {}\r\n", ids[number % ids.len()]).repeat(PEEKS));
    }
    let (mut grown, mut at_owners) = (0, 0);
    for second in 0..SECONDS {
        let begin = Instant::now();
        for (number, reader) in readers.iter().enumerate() {
            let expected = format!("FOUND {} {BODY}\r\n", ids[number % ids.len()]);
            let mut byte = [0];
            let mut stream = std::fs::File::from(reader.as_fd().try_clone_to_owned().expect("a second descriptor"));
            stream.read_exact(&mut byte).map_err(|error| format!("a slow reader is not served: {error}"))?;
            let expected = expected.as_bytes()[second as usize];
            ensure(byte[0] == expected, || format!("byte {second} is {byte:?}, not {expected}"))?;
        }
        rounds.wait_for(20);
        let now = multi.memory();
        grown = grown.max(now.of_frontends().saturating_sub(memory.of_frontends()));
        at_owners = at_owners.max(now.of_owners().saturating_sub(memory.of_owners()));
        std::thread::sleep((begin + Duration::from_secs(1)).saturating_duration_since(Instant::now()));
    }
    let is_bounded = grown <= LINKS_BYTES_MAX + READERS as u64 * READER_BYTES_MAX && at_owners <= LINKS_BYTES_MAX;
    ensure(is_bounded, || {
        format!("{READERS} slow readers take {} of frontends, {} of owners", mib(grown), mib(at_owners))
    })?;
    let asked = (READERS * PEEKS * BODY) as u64;
    drop(readers);
    wait_until("they are gone", || Multi::clients(&mut monitor) == clients);
    let beside = rounds.end(LONGEST_MAX)?;
    drop(monitor);
    multi.finish()?;
    Ok(format!(
        "{READERS} readers asked for {}, {} more in frontends, {} in owners; {beside}",
        mib(asked),
        mib(grown),
        mib(at_owners)
    ))
}
