//! Clients that take their time.

use std::io;
use std::time::{Duration, Instant};

use http_server::{Server, ServerOptions, Times};
use tokio::net::TcpStream;

use crate::sample::{LONG, Sample};
use crate::wire::{Client, get, soon, until};

/// Short enough to wait for, and far longer than a client that hurries is kept from running.
const SHORT: Duration = Duration::from_secs(1);

fn times(change: impl FnOnce(&mut Times)) -> ServerOptions {
    let mut times = Times { handshake: LONG, head: LONG, idle: LONG, write: LONG };
    change(&mut times);
    ServerOptions { times, ..ServerOptions::default() }
}

#[tokio::test]
async fn who_sends_no_head_in_time_is_closed() {
    let sample = Sample::new(vec![]);
    let server = sample.serve(times(|times| times.head = SHORT));
    // Nothing at all; a part; a part in a second request.
    let mut silent = Client::connect(server.address()).await;
    silent.ends().await;
    let mut partial = Client::connect(server.address()).await;
    partial.send("GET /op").await;
    partial.ends().await;
    let mut second = Client::connect(server.address()).await;
    assert_eq!(second.ask(get("/open")).await.status, 200);
    second.send("G").await;
    second.ends().await;
    assert_eq!(sample.door.counted().heads_too_slow, 3);
    assert_eq!(sample.door.counted().idle_closed, 0);
}

#[tokio::test]
async fn idle_connections_have_their_own_time() {
    let sample = Sample::new(vec![]);
    let server = sample.serve(times(|times| times.head = SHORT));
    let mut client = Client::connect(server.address()).await;
    assert_eq!(client.ask(get("/open")).await.status, 200);
    tokio::time::sleep(SHORT * 2).await; // far longer than a head may take
    assert_eq!(client.ask(get("/open")).await.status, 200);
    drop(server);

    let server = sample.serve(times(|times| times.idle = SHORT));
    let mut client = Client::connect(server.address()).await;
    assert_eq!(client.ask(get("/open")).await.status, 200);
    client.ends().await;
    assert_eq!(sample.door.counted().idle_closed, 1);
}

#[tokio::test]
async fn a_call_that_waits_is_not_idle() {
    let sample = Sample::new(vec![]);
    let server = sample.serve(times(|times| (times.head, times.idle, times.write) = (SHORT, SHORT, SHORT)));
    let mut client = Client::connect(server.address()).await;
    client.send(crate::wire::post("/v1/hold", "")).await;
    soon("the call", sample.shared.held.notified()).await;
    tokio::time::sleep(SHORT * 2).await;
    sample.shared.release.notify_one();
    assert_eq!(client.reply().await.unwrap().body, b"released");
}

#[tokio::test]
async fn requests_in_one_piece_are_answered_in_order() {
    let sample = Sample::new(vec![]);
    let server = sample.serve(ServerOptions::default());
    let mut client = Client::connect(server.address()).await;
    let all: String = (0..50).map(|id| get(&format!("/v1/things/{id}"))).collect();
    client.send(all).await;
    for id in 0..50 {
        assert_eq!(client.reply().await.unwrap().json()["text"], format!("thing {id}"));
    }
}

#[tokio::test]
async fn who_does_not_take_the_answer_is_cut() {
    let sample = Sample::new(vec![]);
    let server = sample.serve(times(|times| times.write = SHORT));
    let mut client = Client::connect(server.address()).await;
    client.send(get("/v1/large")).await;
    until("the cut", || sample.door.counted().answers_not_taken == 1).await;
    until("the end", || sample.door.counted().connections_open == 0).await;
    drop(server);
    // Who takes it, gets it.
    let server = sample.serve(times(|_| ()));
    let mut client = Client::connect(server.address()).await;
    assert_eq!(client.ask(get("/v1/large")).await.body.len(), 64 * 1024 * 1024);
}

/// Clients that send a byte now and then, against one that asks. The promise is 100 ms; tested at ten times.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_dribbling_clients_keep_nobody_waiting() {
    const ASKED: u32 = 50;
    raise_descriptors();
    let sample = Sample::new(vec![]);
    let server = sample.serve(times(|_| ()));
    let dribblers = dribble(&server).await;
    until("the dribblers", || sample.door.counted().connections_open == DRIBBLERS as u64).await;
    let mut slowest = Duration::ZERO;
    for _ in 0..ASKED {
        let began = Instant::now();
        let mut client = Client::connect(server.address()).await;
        assert_eq!(client.ask(get("/open")).await.status, 200);
        slowest = slowest.max(began.elapsed());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    println!("slowest answer: {slowest:?}");
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    assert!(sample.door.counted().connections_open >= DRIBBLERS as u64, "all of them were there all the time");
    dribblers.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_dribbling_clients_are_thrown_out() {
    raise_descriptors();
    let sample = Sample::new(vec![]);
    let server = sample.serve(times(|times| times.head = SHORT));
    let dribblers = dribble(&server).await;
    until("throwing them out", || sample.door.counted().heads_too_slow == DRIBBLERS as u64).await;
    until("their end", || sample.door.counted().connections_open == 0).await;
    dribblers.abort();
}

const DRIBBLERS: usize = 1000;

/// Connects clients that send heads byte by byte.
async fn dribble(server: &Server) -> tokio::task::JoinHandle<()> {
    let mut clients = Vec::new();
    for _ in 0..DRIBBLERS {
        clients.push(soon("connecting", TcpStream::connect(server.address())).await.unwrap());
    }
    tokio::spawn(async move {
        let head = b"GET /v1/things/1 HTTP/1.1\r\nhost: localhost\r\nx-slow: ".iter().copied();
        for byte in head.chain(std::iter::repeat(b'a')) {
            // Who was thrown out stays so.
            clients.retain(|client| match client.try_write(&[byte]) {
                Ok(_) => true,
                Err(error) => error.kind() == io::ErrorKind::WouldBlock,
            });
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
}

/// A dribbler takes two descriptors here, one for each end.
fn raise_descriptors() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    let now = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    assert!(now >= 4096, "the test needs 4,096 descriptors and may have {now}");
}
