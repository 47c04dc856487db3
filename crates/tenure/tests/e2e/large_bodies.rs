//! Large bodies: they hold up nobody, and share a bounded memory (GT12).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use testing::process::{Folder, Launch};

use super::tubes;

const MIB: usize = 1 << 20;

fn put(body: &[u8]) -> Vec<u8> {
    [format!("put 0 0 600 {}\r\n", body.len()).as_bytes(), body, b"\r\n"].concat()
}

/// `launch` with so many owners and one frontend, whose memory and links all clients share.
fn behind_one_frontend(launch: &Launch, owners: &str, folder: &Folder) -> Launch {
    let launch = launch.clone().environment("XDG_RUNTIME_DIR", folder.path());
    launch.with(["--owners", owners, "--frontends", "1"])
}

fn is_inserted(answer: &str) -> bool {
    answer.starts_with("INSERTED ")
}

#[test]
fn a_body_of_64_mib_does_not_hold_up_small_commands() {
    // T17: on one link too, with one frontend and one owner.
    let folder = Folder::new();
    let one = tubes().with(["-z", "67108864"]);
    for launch in [one.clone(), behind_one_frontend(&one, "1", &folder)] {
        let server = launch.start();
        let body: Vec<u8> = (0..64 * MIB).map(|at| (at % 249) as u8).collect();
        let mut big = server.connect();
        big.check("watch large\r\nignore default\r\nuse large\r\n", "WATCHING 2\r\nWATCHING 1\r\nUSING large\r\n");
        let mut small = server.connect();
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let rounds = scope.spawn(|| {
                let (mut rounds, mut longest) = (0_u32, Duration::ZERO);
                while !is_done.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    let id = small.put(0, 0, 600, b"x");
                    small.check(format!("delete {id}\r\n"), "DELETED\r\n");
                    longest = longest.max(began.elapsed());
                    rounds += 1;
                }
                (rounds, longest)
            });
            big.send(put(&body));
            let id: u64 = big.line().trim_end().strip_prefix("INSERTED ").expect("an id").parse().expect("an id");
            big.send("reserve\r\n");
            big.expect(format!("RESERVED {id} {}\r\n", body.len()));
            assert!(big.read(body.len()) == body, "another body");
            big.expect("\r\n");
            is_done.store(true, Ordering::Relaxed);
            let (rounds, longest) = rounds.join().expect("small commands are answered");
            assert!(rounds >= 20, "only {rounds} rounds beside a large body");
            // A round takes some milliseconds when the large body is on its way; copying it at one go takes a second.
            assert!(longest < Duration::from_secs(5), "{longest:?} for a round beside a large body");
        });
    }
}

#[test]
fn large_bodies_that_are_being_received_share_a_bounded_memory() {
    let folder = Folder::new();
    let file = folder.join("own.toml");
    std::fs::write(&file, "[tubes]\nbody_memory = \"1MiB\"\nmax_job_size = \"2MiB\"\n").expect("configuration file");
    let launch = tubes().before_tubes(["-c".as_ref(), file.as_os_str()]);
    for launch in [launch.clone(), behind_one_frontend(&launch, "2", &folder)] {
        let server = launch.start();
        let large = put(&vec![b'x'; 700 * 1024]);
        let [mut first, mut second, mut third, mut small] = [(); 4].map(|()| server.connect());
        // The first has begun, and is slow.
        let (begun, rest) = large.split_at(300 * 1024);
        first.send(begun);
        std::thread::scope(|scope| {
            // More than the socket's buffers take: these wait in `send` until the server reads on.
            for waiting in [&mut second, &mut third] {
                let large = &large;
                scope.spawn(move || {
                    waiting.send(large);
                    waiting.send("list-tube-used\r\n");
                });
            }
            // A small body and other commands need no memory of that kind.
            for _ in 0..50 {
                let id = small.put(0, 0, 600, &vec![b'y'; 60_000]);
                small.check(format!("delete {id}\r\n"), "DELETED\r\n");
            }
            assert_eq!(small.stat("stats", "total-jobs"), "50", "none of the large ones is complete");
            first.send(rest);
        });
        for client in [&mut first, &mut second, &mut third] {
            assert!(is_inserted(&client.line()));
        }
        for client in [&mut second, &mut third] {
            client.expect("USING default\r\n");
        }
        // A body that has been put needs none, though its client waits for a job behind it.
        let mut waiting = server.connect();
        waiting.check("watch other\r\nignore default\r\n", "WATCHING 2\r\nWATCHING 1\r\n");
        waiting.send([&large[..], b"reserve\r\n"].concat());
        assert!(is_inserted(&waiting.line()));
        second.send(&large);
        assert!(is_inserted(&second.line()));
        // A body larger than all of it is received alone; and one that is given up gives its memory back.
        first.send(&put(&vec![b'x'; 1536 * 1024])[..MIB]);
        drop(first);
        second.send(put(&vec![b'x'; 1536 * 1024]));
        assert!(is_inserted(&second.line()));
        // Two in one go of one client.
        third.send([large.clone(), large.clone()].concat());
        assert!(is_inserted(&third.line()));
        assert!(is_inserted(&third.line()));
    }
}
