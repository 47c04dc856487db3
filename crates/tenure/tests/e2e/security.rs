//! Hostile and unlucky clients cost no memory, no CPU and no other client's time; privileges and files are tight.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::time::{Duration, Instant};

use testing::client::{Client, readable};
use testing::process::{Folder, Server, wait_until};

use super::{Mode, in_both_modes};

/// More than this much memory for one client that misbehaves is a leak: 256 KiB of output and one job are allowed to
/// a session, and an allocator keeps something for later.
const GROWTH_MAX: u64 = 16 << 20;

/// Measures for a second: the server may use a fifth of it.
#[track_caller]
fn assert_idle(server: &Server, what: &str) {
    let (start, before) = (Instant::now(), server.cpu());
    // Time itself is what is measured here; nothing announces that a process did not work.
    std::thread::sleep(Duration::from_secs(1));
    let used = (server.cpu() - before).as_secs_f64() / start.elapsed().as_secs_f64();
    assert!(used < 0.2, "{what}: {:.0} % CPU", used * 100.0);
}

/// How long another client may be kept waiting by one that misbehaves. No promise to users: it tells a server that
/// goes on from one that is stuck.
const SERVED_MAX: Duration = Duration::from_secs(10);

/// Checks that a client of its own is served.
#[track_caller]
fn assert_serves(server: &Server) {
    let start = Instant::now();
    server.check("list-tube-used\r\n", "USING default\r\n");
    assert!(start.elapsed() < SERVED_MAX, "{:?}", start.elapsed());
}

in_both_modes!(a_line_without_end_takes_no_memory);
fn a_line_without_end_takes_no_memory(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.check("list-tube-used\r\n", "USING default\r\n");
    let before = server.resident();
    for _ in 0..64 {
        client.send(vec![b'x'; 1 << 20]);
    }
    assert_serves(&server);
    let grown = server.resident().saturating_sub(before);
    assert!(grown < GROWTH_MAX, "memory grew by {grown} bytes");
    client.check("\r\nlist-tube-used\r\n", "BAD_FORMAT\r\nUSING default\r\n");
}

in_both_modes!(announced_sizes_take_no_memory);
fn announced_sizes_take_no_memory(mode: Mode) {
    let server = mode.tubes().with(["-z", "1073741824"]).start();
    assert_serves(&server);
    let before = server.resident();
    let mut clients: Vec<Client> = (0..100).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.send("put 0 0 1 1073741824\r\nonly a little of it");
    }
    assert_serves(&server);
    let grown = server.resident().saturating_sub(before);
    assert!(grown < GROWTH_MAX, "memory grew by {grown} bytes");
}

in_both_modes!(a_client_that_does_not_read_takes_little_memory_no_cpu_and_nobodys_time);
fn a_client_that_does_not_read_takes_little_memory_no_cpu_and_nobodys_time(mode: Mode) {
    let server = mode.server();
    let mut producer = server.connect();
    let body = vec![b'b'; 65_535];
    assert_eq!(producer.put(0, 0, 60, &body), 1);
    let mut slow = server.connect();
    let before = server.resident();
    // Answers of terabytes are asked for. The server must stop reading long before all of it was sent.
    let command = b"peek-ready\r\n";
    let commands = command.repeat(1 << 17);
    let mut sent = 0;
    loop {
        let taken = slow.send_without_waiting(&commands[sent % command.len()..]);
        sent += taken;
        if taken == 0 && !server_is_busy(&server) {
            break;
        }
        assert!(sent < 1 << 26, "everything is read though nothing is answered");
    }
    let grown = server.resident().saturating_sub(before);
    assert!(grown < GROWTH_MAX, "memory grew by {grown} bytes");
    assert_idle(&server, "a client does not read");
    assert_serves(&server);
    // It is not forgotten either.
    let answer = [b"FOUND 1 65535\r\n", &body[..], b"\r\n"].concat();
    for _ in 0..100 {
        slow.expect(&answer);
    }
}

/// Whether the server still works on what was sent: it used CPU in the last 20 ms.
fn server_is_busy(server: &Server) -> bool {
    let before = server.cpu();
    std::thread::sleep(Duration::from_millis(20));
    server.cpu() > before + Duration::from_millis(2)
}

in_both_modes!(a_million_commands_without_reading_are_all_answered_in_order_later);
fn a_million_commands_without_reading_are_all_answered_in_order_later(mode: Mode) {
    let server = mode.server();
    assert_serves(&server);
    let before = server.resident();
    let mut input = Vec::new();
    let mut expected = Vec::new();
    for number in 0..1_000_000u32 {
        if number % 1000 == 0 {
            input.extend(format!("use t{number}\r\n").bytes());
            expected.extend(format!("USING t{number}\r\n").bytes());
        } else {
            input.extend(b"peek 1\r\n");
            expected.extend(b"NOT_FOUND\r\n");
        }
    }
    let got = server.play(&input);
    assert!(got == expected, "{}", readable(&got));
    let grown = server.resident().saturating_sub(before);
    assert!(grown < GROWTH_MAX, "memory grew by {grown} bytes");
}

in_both_modes!(a_half_closed_client_with_unread_replies_takes_no_cpu);
fn a_half_closed_client_with_unread_replies_takes_no_cpu(mode: Mode) {
    let server = mode.server();
    let mut producer = server.connect();
    assert_eq!(producer.put(0, 0, 60, &vec![b'b'; 65_535]), 1);
    let mut slow = server.connect();
    slow.send(b"peek 1\r\n".repeat(1000));
    slow.half_close();
    wait_until("the server has done what it can", || !server_is_busy(&server));
    assert_idle(&server, "a half-closed client does not read");
    assert_serves(&server);
    // All is answered when it reads, then the server closes.
    let got = slow.rest();
    assert_eq!(got.len(), 1000 * (b"FOUND 1 65535\r\n".len() + 65_535 + 2));
}

in_both_modes!(a_half_closed_waiting_client_is_gone);
fn a_half_closed_waiting_client_is_gone(mode: Mode) {
    let server = mode.server();
    let mut clients: Vec<Client> = (0..20).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.send("reserve\r\n");
        client.half_close();
    }
    for client in &mut clients {
        client.expect("TIMED_OUT\r\n");
        client.expect_end();
    }
    assert_idle(&server, "clients half-closed and stayed");
}

in_both_modes!(urgent_data_takes_no_cpu);
fn urgent_data_takes_no_cpu(mode: Mode) {
    let server = mode.server();
    let mut client = server.connect();
    client.check("list-tube-used\r\n", "USING default\r\n");
    for _ in 0..3 {
        client.send_urgent(b'!');
    }
    assert_idle(&server, "urgent data");
    assert_serves(&server);
    let mut waiting = server.connect();
    waiting.send("reserve\r\n");
    let mut monitor = server.connect();
    super::wait_for_waiting(&mut monitor, 1);
    waiting.send_urgent(b'!');
    assert_idle(&server, "urgent data for a waiting client");
    monitor.check("put 0 0 60 1\r\na\r\n", "INSERTED 1\r\n");
    waiting.expect("RESERVED 1 1\r\na\r\n");
}

in_both_modes!(without_free_descriptors_it_neither_spins_nor_stops_serving_nor_fails_to_log);
fn without_free_descriptors_it_neither_spins_nor_stops_serving_nor_fails_to_log(mode: Mode) {
    let folder = Folder::new();
    let launch = mode.tubes().log_in(folder.path()).with(["-s", "65536"]);
    let mut server = launch.clone().through(["prlimit", "--nofile=64"]).start();
    let mut early = server.connect();
    early.check("put 0 0 60 1\r\na\r\n", "INSERTED 1\r\n");
    let mut crowd: Vec<Client> = (0..200).map(|_| server.connect()).collect();
    assert!(server.descriptors().iter().all(|count| *count <= 64), "{:?}", server.descriptors());
    assert_idle(&server, "no descriptors are left");
    // Those that are in are served, and the log goes on into new segments.
    for id in 2..=300 {
        assert_eq!(early.put(0, 0, 60, &[b'x'; 1000]), id);
    }
    assert_idle(&server, "no descriptors are left, with a log");
    // Of the crowd somebody was let in, and whoever was let in is answered.
    crowd.iter_mut().for_each(|client| drop(client.try_send(b"list-tube-used\r\n")));
    wait_until("some of the crowd are served", || {
        crowd.iter().filter(|client| client.can_read_within(Duration::ZERO)).count() >= 10
    });
    drop(crowd);
    // With descriptors free again, new clients are served.
    server.check("list-tube-used\r\n", "USING default\r\n");
    server.kill();
    launch.start().connect().check_stats("stats", &[("current-jobs-ready", "300")]);
}

in_both_modes!(thousands_of_connections_come_and_go_without_a_trace);
fn thousands_of_connections_come_and_go_without_a_trace(mode: Mode) {
    let server = mode.server();
    mode.wait_until_linked(&server);
    assert_serves(&server);
    let descriptors = || server.descriptors().iter().sum::<usize>();
    let before = descriptors();
    for round in 0..3000u32 {
        let mut client = server.connect();
        match round % 4 {
            0 => client.send("put 0 0 60 1000\r\nnever finished"),
            1 => client.send("reserve\r\n"),
            2 => client.send("half a li"),
            _ => {}
        }
    }
    let mut monitor = server.connect();
    wait_until("all are gone", || monitor.stat("stats", "current-connections") == "1");
    monitor.check_stats(
        "stats",
        &[("current-waiting", "0"), ("current-jobs-ready", "0"), ("current-tubes", "1"), ("current-producers", "0")],
    );
    // Of several processes one may be about to count and close the last that it accepted.
    wait_until("all descriptors are closed", || descriptors() <= before + 1);
    assert_idle(&server, "after a flood of connections");
}

in_both_modes!(thousands_of_unknown_commands_leave_the_connection_open);
fn thousands_of_unknown_commands_leave_the_connection_open(mode: Mode) {
    let server = mode.server();
    let count = 10_000;
    let mut client = server.connect();
    client.send("Host: example.com\r\n".repeat(count));
    client.expect("UNKNOWN_COMMAND\r\n".repeat(count));
    client.check("put 0 0 60 1\r\na\r\n", "INSERTED 1\r\n");
}

in_both_modes!(resets_in_the_middle_of_anything_do_no_harm);
fn resets_in_the_middle_of_anything_do_no_harm(mode: Mode) {
    let server = mode.server();
    for input in ["put 0 0 60 100\r\nabc", "reserve\r\n", "stats\r\nstats\r\nstats\r\n", "use ", ""] {
        for _ in 0..50 {
            let client = server.connect();
            rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).expect("reset at close");
            let mut client = client;
            client.send(input);
        }
    }
    assert_serves(&server);
    let mut monitor = server.connect();
    wait_until("all are gone", || monitor.stat("stats", "current-connections") == "1");
    assert_idle(&server, "after resets");
}

/// A small generator of our own, so that a seed means the same on every machine (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).expect("below a usize")
    }
}

/// Every line that can answer a command which returns no body.
fn is_plain_answer(line: &str) -> bool {
    let words = [
        "UNKNOWN_COMMAND",
        "BAD_FORMAT",
        "NOT_FOUND",
        "TIMED_OUT",
        "EXPECTED_CRLF",
        "JOB_TOO_BIG",
        "NOT_IGNORED",
        "PAUSED",
        "TOUCHED",
        "DELETED",
        "RELEASED",
        "BURIED",
        "KICKED",
    ];
    let with_argument = ["USING ", "WATCHING ", "KICKED "];
    words.contains(&line) || with_argument.iter().any(|word| line.starts_with(word))
}

in_both_modes!(malformed_input_gets_only_known_answers_and_never_anothers_bytes);
fn malformed_input_gets_only_known_answers_and_never_anothers_bytes(mode: Mode) {
    let words = [
        "put",
        "use",
        "reserve",
        "reserve-with-timeout 0",
        "reserve-job",
        "delete",
        "release",
        "bury",
        "touch",
        "watch",
        "ignore",
        "peek",
        "peek-ready",
        "peek-delayed",
        "peek-buried",
        "kick",
        "kick-job",
        "list-tube-used",
        "pause-tube",
        "quit",
        " ",
        "0",
        "1",
        "-1",
        "4294967295",
        "4294967296",
        "18446744073709551615",
        "18446744073709551616",
        "default",
        "-a",
        "\0",
        "\r",
        "\n",
        "\t",
        "\u{7f}",
        "a;b",
        "HTTP/1.1",
        "%s%n",
        "'",
        "\"",
        "~",
    ];
    let server = mode.server();
    // Somebody's secrets in a tube of their own, held, so that no command may return them.
    let mut owner = server.connect();
    owner.check(
        "use private\r\nwatch private\r\nput 0 0 4294967295 10\r\nSECRETBYTE\r\nreserve\r\n",
        "USING private\r\nWATCHING 2\r\nINSERTED 1\r\nRESERVED 1 10\r\nSECRETBYTE\r\n",
    );
    for seed in 1..=300 {
        let mut random = Random(seed);
        let mut input = b"list-tube-used\r\n".to_vec();
        for _ in 0..100 {
            for part in 0..=random.below(6) {
                if part > 0 && random.below(8) > 0 {
                    input.push(b' ');
                }
                input.extend(words[random.below(words.len())].bytes());
                if random.below(20) == 0 {
                    input.extend(vec![b'z'; random.below(500)]);
                }
                if random.below(20) == 0 {
                    input.push(random.next().to_le_bytes()[0]);
                }
            }
            input.extend(b"\r\n");
        }
        let got = server.play(&input);
        let text = String::from_utf8_lossy(&got);
        // The one job is 1; asking for it by id is no leak, so those answers are taken out first.
        let lines = text.replace("FOUND 1 10\r\nSECRETBYTE\r\n", "");
        for line in lines.split_terminator("\r\n") {
            let inserted = line.starts_with("INSERTED ") || line.starts_with("FOUND ") || line.starts_with("RESERVED ");
            // A put with a small size may succeed by chance; its body is then the garbage behind it.
            let may_be_body = lines.contains("INSERTED ");
            assert!(is_plain_answer(line) || inserted || may_be_body, "seed {seed}: {line:?}");
            assert!(!line.contains("SECRET"), "seed {seed}: {line:?}");
        }
    }
    assert_serves(&server);
    owner.check("touch 1\r\n", "TOUCHED\r\n");
}

in_both_modes!(with_u_every_privilege_is_given_up);
fn with_u_every_privilege_is_given_up(mode: Mode) {
    assert!(rustix::process::geteuid().is_root(), "this test needs root, as dropping privileges does");
    let folder = Folder::new();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("mode");
    let data = folder.join("data");
    fs::create_dir(&data).expect("a directory");
    std::os::unix::fs::chown(&data, Some(65_534), Some(65_534)).expect("owner");
    for launch in [mode.tubes(), mode.tubes().called_beanstalkd()] {
        // Supplementary groups of the caller must not stay.
        let server = launch.with(["-u", "nobody"]).log_in(&data).through(["setpriv", "--groups=0,1,2,3"]).start();
        let id = server.connect().put(0, 0, 60, b"a");
        assert_eq!(server.processes().len(), if mode == Mode::Single { 1 } else { 5 });
        let each_has = |name: &str, expected: &[&str]| {
            for value in server.statuses(name) {
                assert_eq!(value.split_whitespace().collect::<Vec<_>>(), expected, "{name}");
            }
        };
        each_has("Uid", &["65534"; 4]);
        each_has("Gid", &["65534"; 4]);
        each_has("Groups", &[]);
        for name in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            each_has(name, &["0000000000000000"]);
        }
        each_has("NoNewPrivs", &["1"]);
        server.connect().check(format!("delete {id}\r\n"), "DELETED\r\n");
        for entry in fs::read_dir(data.join("logs-1/slot-0")).expect("the log's folder") {
            assert_eq!(entry.expect("an entry").metadata().expect("metadata").uid(), 65_534);
        }
    }
}

in_both_modes!(with_u_a_privileged_port_is_bound_before_the_drop);
fn with_u_a_privileged_port_is_bound_before_the_drop(mode: Mode) {
    assert!(rustix::process::geteuid().is_root(), "this test needs root, as low ports do");
    // In a network of its own, where port 11 is surely free.
    let up = "ip link set lo up 2>/dev/null || ifconfig lo up 2>/dev/null; exec \"$0\" \"$@\"";
    let port = 11;
    let server = mode
        .tubes()
        .through(["unshare", "--net", "sh", "-c", up])
        .with(["-u", "nobody", "-l", "127.0.0.1", "-p", &port.to_string()])
        .on_given_address(testing::process::Address::Tcp((std::net::Ipv4Addr::LOCALHOST, port).into()))
        .spawn_only();
    let mut server = server;
    wait_until("privileges are dropped", || {
        assert!(server.is_running(), "{}", server.stderr());
        server.status("Uid").starts_with("65534")
    });
    let table = fs::read_to_string(format!("/proc/{}/net/tcp", server.pid())).expect("its sockets");
    assert!(table.contains("0100007F:000B"), "{table}");
}

in_both_modes!(files_of_the_log_are_for_their_owner_only);
fn files_of_the_log_are_for_their_owner_only(mode: Mode) {
    let folder = Folder::new();
    let server = mode.tubes().log_in(folder.path()).through(["sh", "-c", "umask 000; exec \"$0\" \"$@\""]).start();
    server.check("put 0 0 60 1\r\na\r\n", "INSERTED 1\r\n");
    let mut folders = vec![folder.path().to_owned()];
    let mut seen = 0;
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).expect("a folder") {
            let path = entry.expect("an entry").path();
            let mode = fs::symlink_metadata(&path).expect("metadata").permissions().mode();
            assert_eq!(mode & 0o077, 0, "{} has mode {mode:o}", path.display());
            seen += 1;
            if path.is_dir() {
                folders.push(path);
            }
        }
    }
    assert!(seen >= 4, "only {seen} entries in the data directory");
}

in_both_modes!(links_in_the_place_of_log_files_are_not_followed);
fn links_in_the_place_of_log_files_are_not_followed(mode: Mode) {
    let folder = Folder::new();
    let launch = mode.tubes().log_in(folder.path());
    let mut server = launch.start();
    server.check("put 0 0 60 1\r\na\r\n", "INSERTED 1\r\n");
    server.terminate();
    let elsewhere = Folder::new();
    for name in ["logs-1/slot-0/0000000001.log", "logs-1/slot-0/lock", "lock", "manifest.toml", "logs-1/slot-0"] {
        let member = folder.join(name);
        let target = elsewhere.join("target");
        fs::rename(&member, &target).expect("moved away");
        symlink(&target, &member).expect("a link in its place");
        let finished = launch.finish();
        assert!(!matches!(finished.code, None | Some(0)), "{name}: {finished:?}");
        fs::remove_file(&member).expect("the link");
        fs::rename(&target, &member).expect("moved back");
    }
    launch.start().check("peek 1\r\n", "FOUND 1 1\r\na\r\n");
}

in_both_modes!(the_server_hands_no_descriptor_of_its_caller_on);
fn the_server_hands_no_descriptor_of_its_caller_on(mode: Mode) {
    let server = mode.server();
    // Standard input, output and error, a handful of its own, and some for each process: nothing grows with the caller's.
    let most = if mode == Mode::Single { 20 } else { 40 };
    assert!(server.descriptors().iter().all(|count| *count < most), "{:?}", server.descriptors());
    drop(TcpStream::connect(("127.0.0.1", server.port())).expect("it listens"));
}
