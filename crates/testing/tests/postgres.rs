//! The private PostgreSQL and each fault around it do what tests will rely on.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use testing::postgres::clock::Clock;
use testing::postgres::{Database, Direction, Mode, Options, PgBouncer, Pooling, Row, Server, TcpProxy, query, shared};
use testing::process::{OUTER_LIMIT, wait_until};
use tokio_postgres::{Client, NoTls};

/// As long as nothing is expected to come.
const QUIET: Duration = Duration::from_millis(100);

fn one(rows: Vec<Row>) -> String {
    rows.into_iter().next().expect("a row").into_iter().next().flatten().expect("a value")
}

#[track_caller]
fn ask(dsn: &str, statement: &str) -> String {
    one(query(dsn, statement).unwrap_or_else(|error| panic!("{statement}: {error}")))
}

/// Whether a process runs. One that has ended stays in the table until the process that inherited it asks for it.
fn is_there(pid: u32) -> bool {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    text.rsplit_once(") ").is_some_and(|(_, rest)| !matches!(rest.as_bytes()[0], b'Z' | b'X'))
}

/// Of the segments that the kernel knows, those with this number.
fn has_segment(number: &str) -> bool {
    let table = std::fs::read_to_string("/proc/sysvipc/shm").expect("the table of segments");
    table.lines().any(|line| line.split_whitespace().nth(1) == Some(number))
}

/// The segment that a server uses.
fn segment(server: &Server) -> String {
    let file = server.folder().join("data").join("postmaster.pid");
    let text = std::fs::read_to_string(file).expect("the file of a running server");
    text.lines().nth(6).and_then(|line| line.split_whitespace().nth(1)).expect("its segment").to_owned()
}

async fn connect(dsn: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(dsn, NoTls).await.expect("a connection");
    tokio::spawn(connection);
    client
}

#[test]
fn a_server_has_the_role_and_the_database_and_no_more_rights() {
    let server = Options::new().max_connections(400).setting("deadlock_timeout", "123ms").start();
    let dsn = server.dsn();
    assert_eq!(ask(&dsn, "SELECT current_user || ' ' || current_database()"), "tenure tenure");
    assert_eq!(ask(&dsn, "SELECT rolsuper FROM pg_roles WHERE rolname = current_user"), "f");
    assert_eq!(ask(&dsn, "SHOW max_connections"), "400");
    assert_eq!(ask(&dsn, "SHOW deadlock_timeout"), "123ms");
    assert_eq!(ask(&dsn, "SHOW fsync"), "on");
    assert_eq!(ask(&dsn, "CREATE TABLE t(a int); INSERT INTO t VALUES (1); SELECT count(*) FROM t"), "1");
    assert_eq!(server.timeline(), 1);
    assert!(!server.is_replica());
    // The superuser is not reachable over TCP, where everybody of the machine is.
    let refused = query(&dsn.replace("tenure@", "postgres@"), "SELECT 1").expect_err("the superuser over TCP");
    assert!(refused.starts_with("28000"), "{refused}");
}

#[test]
fn what_is_committed_survives_each_way_to_stop() {
    let mut server = Options::new().start();
    let dsn = server.dsn();
    ask(&dsn, "CREATE TABLE t(a serial); SELECT 1");
    let ways: [fn(&mut Server); 4] = [
        Server::restart_immediate,
        |server| {
            server.stop_immediate();
            server.start()
        },
        |server| {
            server.stop_fast();
            server.start();
        },
        |server| {
            server.kill();
            server.start();
        },
    ];
    for (stops, way) in ways.into_iter().enumerate() {
        ask(&dsn, "INSERT INTO t DEFAULT VALUES; SELECT 1");
        let before = server.processes();
        way(&mut server);
        assert!(!before.into_iter().any(is_there), "a process outlived stop {stops}");
        assert_eq!(ask(&dsn, "SELECT count(*) FROM t"), (stops + 1).to_string());
    }
    server.stop_fast();
    let refused = query(&dsn, "SELECT 1").expect_err("a stopped server");
    assert!(refused.contains("refused"), "{refused}");
}

#[test]
fn a_dropped_server_leaves_no_process_no_folder_and_no_shared_memory() {
    for way in ["running", "paused", "killed"] {
        let mut server = Options::new().without_sync().start();
        let processes = server.processes();
        let (folder, segment) = (server.folder().to_owned(), segment(&server));
        assert!(processes.len() > 3 && has_segment(&segment));
        match way {
            "paused" => server.pause(),
            "killed" => server.kill(),
            _ => {}
        }
        drop(server);
        assert!(!processes.into_iter().any(is_there), "a process is left of a server that was {way}");
        assert!(!folder.exists(), "the folder is left of a server that was {way}");
        assert!(!has_segment(&segment), "shared memory is left of a server that was {way}");
    }
}

#[test]
fn a_server_that_does_not_start_shows_its_log() {
    let started = std::panic::catch_unwind(|| Options::new().setting("shared_buffers", "nonsense").start());
    let message = started.expect_err("a start with nonsense").downcast::<String>().expect("a message");
    assert!(message.contains("invalid value for parameter \"shared_buffers\""), "{message}");
}

#[test]
fn a_paused_server_answers_when_it_is_resumed() {
    let mut server = Options::new().without_sync().start();
    let dsn = server.dsn();
    std::thread::scope(|scope| {
        server.pause();
        let (answer, answered) = std::sync::mpsc::sync_channel(1);
        scope.spawn(move || answer.send(ask(&dsn, "SELECT 1")));
        assert!(answered.recv_timeout(QUIET).is_err(), "a frozen server answered");
        server.resume();
        assert_eq!(answered.recv_timeout(OUTER_LIMIT), Ok("1".to_owned()));
    });
}

#[tokio::test]
async fn sessions_are_ended_by_number_and_by_database() {
    let database = Database::new();
    let (first, second) = (connect(&database.dsn()).await, connect(&database.dsn()).await);
    let number: i32 = first.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    assert!(shared().terminate(number));
    assert!(first.query_one("SELECT 1", &[]).await.is_err());
    second.query_one("SELECT 1", &[]).await.expect("the other session");
    wait_until("the ended session is gone", || {
        database
            .sql("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
            == [[Some("1".to_owned())]]
    });
    // One of the harness itself may be on its way out.
    assert!(database.terminate_all() >= 1);
    assert!(second.query_one("SELECT 1", &[]).await.is_err());
}

#[test]
fn databases_of_tests_do_not_see_each_other_and_go() {
    let (first, second) = (Database::new(), Database::new());
    first.sql("CREATE TABLE t(a int)");
    second.sql("CREATE TABLE t(b int)");
    let name = first.name().to_owned();
    drop(first);
    let left = shared().sql("SELECT datname FROM pg_database").into_iter().map(one_of).collect::<Vec<_>>();
    assert!(!left.contains(&name) && left.contains(&second.name().to_owned()), "{left:?}");
}

fn one_of(row: Row) -> String {
    one(vec![row])
}

#[test]
fn a_replica_follows_and_its_promotion_begins_a_timeline() {
    let mut primary = Server::new();
    ask(&primary.dsn(), "CREATE TABLE t(a int); INSERT INTO t VALUES (1); SELECT 1");
    let mut replica = primary.replica();
    assert!(replica.is_replica());
    ask(&primary.dsn(), "INSERT INTO t VALUES (2); SELECT 1");
    primary.wait_for_replica(&replica);
    assert_eq!(ask(&replica.dsn(), "SELECT sum(a) FROM t"), "3");
    let refused = query(&replica.dsn(), "INSERT INTO t VALUES (3)").expect_err("a write to a replica");
    assert!(refused.starts_with("25006"), "{refused}");

    // Stopped, it misses what the primary commits last: the failover that loses something.
    replica.stop_fast();
    ask(&primary.dsn(), "INSERT INTO t VALUES (4); SELECT 1");
    primary.kill();
    replica.start();
    replica.promote();
    assert!(!replica.is_replica());
    assert_eq!(replica.timeline(), 2);
    assert_eq!(ask(&replica.dsn(), "INSERT INTO t VALUES (8); SELECT sum(a) FROM t"), "11");
    // The old primary comes back and knows nothing of it.
    primary.start();
    assert_eq!(primary.timeline(), 1);
    assert_eq!(ask(&primary.dsn(), "SELECT sum(a) FROM t"), "7");
}

#[test]
fn a_step_of_the_clock_is_seen_by_those_who_look() {
    let database = Database::new();
    let clock = Clock::of(&database);
    let ahead = "SELECT round(extract(epoch FROM clock_timestamp() - pg_catalog.clock_timestamp()))::int";
    assert_eq!(ask(&clock.dsn(), ahead), "0");
    clock.set_offset_us(3_600_000_000);
    assert_eq!(ask(&clock.dsn(), ahead), "3600");
    assert_eq!(ask(&database.dsn(), ahead), "0");
    clock.set_offset_us(-10_000_000);
    assert_eq!(ask(&clock.dsn(), ahead), "-10");
    // A default of a column, too, and tables lie where all who use the clock find them.
    let default = "CREATE TABLE t(at timestamptz DEFAULT clock_timestamp());
        INSERT INTO t DEFAULT VALUES; SELECT round(extract(epoch FROM at - pg_catalog.clock_timestamp()))::int FROM t";
    assert_eq!(ask(&clock.dsn(), default), "-10");
    clock.freeze_at_us(1_000_000_123_456);
    let stands = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    assert_eq!(ask(&clock.dsn(), stands), "1000000123456");
    clock.set_offset_us(0);
    assert_eq!(ask(&clock.dsn(), ahead), "0");
}

#[tokio::test]
async fn a_step_of_the_clock_shows_in_a_transaction_with_an_old_snapshot() {
    let database = Database::new();
    let clock = Clock::of(&database);
    let mut client = connect(&clock.dsn()).await;
    let transaction = client
        .build_transaction()
        .isolation_level(tokio_postgres::IsolationLevel::RepeatableRead)
        .start()
        .await
        .unwrap();
    let ahead = "SELECT clock_timestamp() - pg_catalog.clock_timestamp() > interval '1 hour'";
    assert!(!transaction.query_one(ahead, &[]).await.unwrap().get::<_, bool>(0));
    clock.set_offset_us(7_200_000_000);
    assert!(transaction.query_one(ahead, &[]).await.unwrap().get::<_, bool>(0));
}

#[tokio::test]
async fn a_pooler_answers_and_shares_its_connections() {
    let database = Database::new();
    let pooler = PgBouncer::new(shared().address(), Pooling::Transaction);
    let client = connect(&database.dsn_at(pooler.address())).await;
    let number = "SELECT pg_backend_pid()";
    let first: String = one_value(&client, number).await;
    // While another client is inside a transaction on that connection, this one's next transaction is elsewhere.
    let other = connect(&database.dsn_at(pooler.address())).await;
    other.batch_execute("BEGIN").await.unwrap();
    let taken = one_value(&other, number).await;
    assert_eq!(first, taken, "an idle connection is used by whoever comes");
    assert_ne!(one_value(&client, number).await, taken);

    let own = PgBouncer::new(shared().address(), Pooling::Session);
    let client = connect(&database.dsn_at(own.address())).await;
    let first = one_value(&client, number).await;
    let other = connect(&database.dsn_at(own.address())).await;
    assert_ne!(one_value(&other, number).await, first, "a session keeps its connection");
}

async fn one_value(client: &Client, statement: &str) -> String {
    for message in client.simple_query(statement).await.unwrap() {
        if let tokio_postgres::SimpleQueryMessage::Row(row) = message {
            return row.get(0).unwrap().to_owned();
        }
    }
    panic!("{statement} gave no row");
}

/// A server that sends back what it gets, one connection after the other; ends with the test.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = listener.local_addr().expect("its address");
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.expect("a connection");
            std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(count @ 1..) = client.read(&mut buffer) {
                    if client.write_all(&buffer[..count]).is_err() {
                        break;
                    }
                }
            });
        }
    });
    address
}

fn client_of(proxy: &TcpProxy) -> TcpStream {
    let client = TcpStream::connect(proxy.address()).expect("a connection");
    client.set_read_timeout(Some(OUTER_LIMIT)).expect("an option");
    client
}

#[track_caller]
fn expect(client: &mut TcpStream, expected: &[u8]) {
    let mut got = vec![0; expected.len()];
    client.read_exact(&mut got).expect("bytes come back");
    assert_eq!(got, expected);
}

#[track_caller]
fn expect_silence(client: &mut TcpStream) {
    client.set_read_timeout(Some(QUIET)).expect("an option");
    let error = client.read(&mut [0; 1]).expect_err("neither bytes nor an end");
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    client.set_read_timeout(Some(OUTER_LIMIT)).expect("an option");
}

#[track_caller]
fn expect_end(client: &mut TcpStream) {
    // Closed with bytes unread, it is a reset.
    let ended = client.read(&mut [0; 1]);
    assert!(matches!(&ended, Ok(0)) || ended.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset));
}

#[test]
fn a_proxy_passes_everything_and_counts() {
    let proxy = TcpProxy::new(echo());
    let mut client = client_of(&proxy);
    let much: Vec<u8> = (0..1_000_000_u32).map(|number| number as u8).collect();
    std::thread::scope(|scope| {
        let mut writer = client.try_clone().expect("one more descriptor");
        let bytes = &much;
        scope.spawn(move || writer.write_all(bytes).expect("bytes are taken"));
        expect(&mut client, &much);
    });
    client.shutdown(Shutdown::Write).expect("an end");
    expect_end(&mut client);
    wait_until("the connection has ended at both sides", || proxy.counts().open == 0);
    let counts = proxy.counts();
    assert_eq!((counts.connections, counts.bytes_to_server, counts.bytes_to_client), (1, 1_000_000, 1_000_000));
    assert_eq!(counts.bytes_lost, 0);
}

#[test]
fn a_proxy_delays_one_direction() {
    let proxy = TcpProxy::new(echo());
    let mut client = client_of(&proxy);
    proxy.set(Direction::ToClient, Mode::Delay(QUIET));
    let sent = Instant::now();
    client.write_all(b"a").unwrap();
    client.write_all(b"b").unwrap();
    expect(&mut client, b"ab");
    assert!(sent.elapsed() >= QUIET);
}

#[test]
fn a_proxy_holds_and_lets_go() {
    let proxy = TcpProxy::new(echo());
    let mut client = client_of(&proxy);
    proxy.set(Direction::ToServer, Mode::Hold);
    client.write_all(b"held").unwrap();
    expect_silence(&mut client);
    proxy.set_both(Mode::Pass);
    expect(&mut client, b"held");
}

#[test]
fn what_a_proxy_swallowed_never_comes_and_nothing_comes_after_it() {
    let proxy = TcpProxy::new(echo());
    let mut client = client_of(&proxy);
    client.write_all(b"before").unwrap();
    expect(&mut client, b"before");
    proxy.set(Direction::ToServer, Mode::Swallow);
    client.write_all(b"lost").unwrap();
    wait_until("the bytes are lost", || proxy.counts().bytes_lost == 4);
    proxy.set_both(Mode::Pass);
    client.write_all(b"more").unwrap();
    expect_silence(&mut client);
    // A new connection passes; one that began in the dark does not.
    let mut other = client_of(&proxy);
    other.write_all(b"new").unwrap();
    expect(&mut other, b"new");
    proxy.set_both(Mode::Swallow);
    let mut dark = client_of(&proxy);
    dark.write_all(b"dark").unwrap();
    expect_silence(&mut dark);
    proxy.cut();
    expect_end(&mut client);
    expect_end(&mut other);
    expect_end(&mut dark);
    assert_eq!(proxy.counts().open, 0);
}

#[test]
fn a_half_open_connection_hides_the_end_of_its_peer() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let proxy = TcpProxy::new(listener.local_addr().expect("its address"));
    let client = client_of(&proxy);
    let (mut server, _) = listener.accept().expect("the proxy connects");
    proxy.set(Direction::ToServer, Mode::Swallow);
    drop(client);
    expect_silence(&mut server);
}

#[test]
fn a_proxy_closes_instead_of_answering() {
    let proxy = TcpProxy::new(echo());
    let mut client = client_of(&proxy);
    client.write_all(b"a").unwrap();
    expect(&mut client, b"a");
    proxy.set(Direction::ToClient, Mode::Close);
    client.write_all(b"b").unwrap();
    expect_end(&mut client);
    // The server had got it.
    let counts = proxy.counts();
    assert_eq!((counts.bytes_to_server, counts.bytes_to_client, counts.bytes_lost), (2, 1, 1));
}

#[test]
fn a_proxy_refuses_new_connections_only() {
    let proxy = TcpProxy::new(echo());
    let mut client = client_of(&proxy);
    client.write_all(b"a").unwrap();
    expect(&mut client, b"a");
    proxy.refuse();
    let refused = TcpStream::connect(proxy.address()).expect_err("nobody listens");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    client.write_all(b"b").unwrap();
    expect(&mut client, b"b");
    proxy.accept();
    proxy.accept();
    let mut other = client_of(&proxy);
    other.write_all(b"c").unwrap();
    expect(&mut other, b"c");
    let address = proxy.address();
    drop(proxy);
    expect_end(&mut client);
    assert!(TcpStream::connect(address).is_err(), "a dropped proxy listens");
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_was_done() {
    let database = Database::new();
    let proxy = TcpProxy::new(database.address());
    let client = connect(&database.dsn_at(proxy.address())).await;
    client.batch_execute("CREATE TABLE t(a int)").await.unwrap();
    proxy.set(Direction::ToClient, Mode::Close);
    let unknown = client.batch_execute("INSERT INTO t VALUES (1)").await.expect_err("no answer");
    assert!(unknown.is_closed() || unknown.as_db_error().is_none(), "{unknown}");
    assert_eq!(one(database.sql("SELECT count(*) FROM t")), "1");
}

/// Set for the copy of this program that is to be left alone with a server.
const LEFT_ALONE: &str = "TESTING_LEFT_ALONE";

/// Does nothing but in the copies that the two tests below start.
#[test]
fn left_alone() {
    let Ok(way) = std::env::var(LEFT_ALONE) else { return };
    let server = shared();
    let pooler = PgBouncer::new(server.address(), Pooling::Transaction);
    let mut other = Options::new().without_sync().start();
    other.pause();
    let processes: Vec<String> = server.processes().iter().chain(&other.processes()).map(u32::to_string).collect();
    println!("\nleft {} {} {}", server.folder().display(), segment(server), processes.join(" "));
    if way == "ends" {
        // As statics: nobody drops them.
        std::mem::forget((pooler, other));
        return;
    }
    std::thread::park();
}

#[track_caller]
fn check_what_is_left(way: &str) {
    let program = std::env::current_exe().expect("this program");
    let mut copy = Command::new(program)
        .args(["--exact", "left_alone", "--nocapture"])
        .env(LEFT_ALONE, way)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a copy of this program");
    let mut said = std::io::BufReader::new(copy.stdout.take().expect("the pipe was asked for"));
    let mut line = String::new();
    while !line.starts_with("left ") {
        line.clear();
        assert_ne!(std::io::BufRead::read_line(&mut said, &mut line).expect("a line"), 0, "it said nothing");
    }
    let words: Vec<&str> = line.split_whitespace().collect();
    let (folder, segment, processes) = (Path::new(words[1]), words[2], &words[3..]);
    assert!(processes.len() > 6);
    if way == "is killed" {
        copy.kill().expect("a child of ours");
    }
    copy.wait().expect("a child of ours");
    wait_until("its folder is gone", || !folder.parent().expect("the folder of all servers").exists());
    assert!(!processes.iter().any(|pid| is_there(pid.parse().unwrap())), "a process is left");
    assert!(!has_segment(segment), "shared memory is left");
}

#[test]
fn nothing_is_left_of_a_program_that_ends() {
    check_what_is_left("ends");
}

#[test]
fn nothing_is_left_of_a_program_that_is_killed() {
    check_what_is_left("is killed");
}
