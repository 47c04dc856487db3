//! How much a client may send, and how many may be there.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use http_server::{DoorOptions, ServerOptions};
use tokio::net::TcpSocket;

use crate::sample::Sample;
use crate::wire::{Client, get, post, soon, until};

#[tokio::test]
async fn a_head_that_is_too_large_is_431() {
    let sample = Sample::new(vec![]);
    let server = sample.serve(ServerOptions::default());
    let with_fields = |count: usize, bytes: usize| {
        let fields: String = (0..count).map(|index| format!("x-{index}: {}\r\n", "v".repeat(bytes))).collect();
        get("/open").replacen("\r\n", &format!("\r\n{fields}"), 1)
    };
    let mut client = Client::connect(server.address()).await;
    assert_eq!(client.ask(with_fields(63, 1)).await.status, 200);
    for (count, bytes) in [(64, 1), (1, 16 * 1024), (10, 2000)] {
        let reply = client.ask(with_fields(count, bytes)).await;
        assert_eq!((reply.status, reply.code().as_str()), (431, "head_too_large"), "{count} × {bytes}");
    }
    let long = get(&format!("/open?{}", "a".repeat(16 * 1024)));
    assert_eq!(client.ask(long).await.status, 431);
    // Far beyond it hyper refuses by itself and closes.
    for (count, bytes) in [(1000, 1), (1, 100_000)] {
        let mut client = Client::connect(server.address()).await;
        let _ = client.try_send(with_fields(count, bytes)).await;
        assert_eq!(client.reply().await.expect("an answer").status, 431, "{count} × {bytes}");
        client.ends().await;
    }
}

#[tokio::test]
async fn a_body_that_is_too_large_is_413_and_names_field_and_limit() {
    let sample = Sample::new(vec![]);
    let server = sample.serve(ServerOptions::default());
    let large = format!(r#"{{"text":"{}"}}"#, "x".repeat(200));
    let mut client = Client::connect(server.address()).await;
    let reply = client.ask(post("/v1/things:start", &large)).await;
    assert_eq!((reply.status, reply.code().as_str()), (413, "too_large"));
    let document = reply.json();
    assert_eq!((&document["field"], &document["limit_bytes"]), (&"body".into(), &100.into()));

    // The same without a length in front of it.
    let chunked = format!(
        "POST /v1/things:start HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         transfer-encoding: chunked\r\n\r\n{:x}\r\n{large}\r\n0\r\n\r\n",
        large.len()
    );
    let mut client = Client::connect(server.address()).await;
    let reply = client.ask(chunked).await;
    assert_eq!((reply.status, reply.code().as_str()), (413, "too_large"));

    // Other routes take a mebibyte, and not a byte more.
    let raw = |bytes: usize| {
        let head = format!("POST /v1/events HTTP/1.1\r\nhost: localhost\r\ncontent-length: {bytes}\r\n\r\n");
        [head.into_bytes(), vec![b'x'; bytes]].concat()
    };
    let mut client = Client::connect(server.address()).await;
    assert_eq!(client.ask(raw(1024 * 1024)).await.body, b"1048576");
    assert_eq!(client.ask(raw(1024 * 1024 + 1)).await.status, 413);
}

/// A client that sends all before it reads must still learn why it was refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_on_sending_reads_its_413() {
    let sample = Sample::new(vec![]);
    let server = sample.serve(ServerOptions::default());
    for _ in 0..20 {
        let mut client = Client::connect(server.address()).await;
        let bytes = 8 * 1024 * 1024;
        client.send(format!("POST /v1/events HTTP/1.1\r\nhost: localhost\r\ncontent-length: {bytes}\r\n\r\n")).await;
        client.send(vec![b'x'; bytes]).await;
        assert_eq!(client.reply().await.expect("an answer").status, 413);
    }
}

#[tokio::test]
async fn who_asks_first_whether_to_send_is_not_told_to_go_on() {
    let sample = Sample::new(vec![]);
    let server = sample.serve(ServerOptions::default());
    let head = |bytes: usize| {
        format!(
            "POST /v1/events HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: {bytes}\r\n\r\n"
        )
    };
    let mut client = Client::connect(server.address()).await;
    assert_eq!(client.ask(head(2 * 1024 * 1024)).await.status, 413);
    let mut client = Client::connect(server.address()).await;
    assert_eq!(client.ask(head(3)).await.status, 100);
    assert_eq!(client.ask("abc").await.body, b"3");
}

#[tokio::test]
async fn a_body_that_does_not_come_is_408() {
    let short = |options: &mut DoorOptions| options.body_timeout = Duration::from_millis(100);
    let sample = Sample::with(vec![], short);
    let server = sample.serve(ServerOptions::default());
    let mut client = Client::connect(server.address()).await;
    client.send("POST /v1/events HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\nabc").await;
    let reply = client.reply().await.unwrap();
    assert_eq!((reply.status, reply.code().as_str()), (408, "body_too_slow"));
    client.ends().await;
}

#[tokio::test]
async fn broken_requests_are_400_and_end_the_connection() {
    let sample = Sample::new(vec![]);
    let server = sample.serve(ServerOptions::default());
    for bytes in [
        "put 0 0 60 5\r\nhello\r\n",
        "GET /open\r\n\r\n",
        "GET /open HTTP/1.1\r\nbad header\r\n\r\n",
        "POST /v1/events HTTP/1.1\r\nhost: localhost\r\ncontent-length: x\r\n\r\n",
        "POST /v1/events HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        let mut client = Client::connect(server.address()).await;
        client.send(bytes).await;
        if let Some(reply) = client.reply().await {
            assert_eq!(reply.status, 400, "{bytes}");
        }
        client.ends().await;
    }
    let mut client = Client::connect(server.address()).await;
    client.send("POST /v1/events HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n").await;
    let reply = client.reply().await.unwrap();
    assert_eq!((reply.status, reply.code().as_str()), (400, "body_broken"));
    assert_eq!(Client::connect(server.address()).await.ask(get("/open")).await.status, 200);
}

#[tokio::test]
async fn one_connection_too_many_is_told_so_and_a_place_is_given_back() {
    let sample = Sample::new(vec![]);
    let server = sample.serve(ServerOptions { connections_max: 2, ..ServerOptions::default() });
    let mut first = Client::connect(server.address()).await;
    let mut second = Client::connect(server.address()).await;
    assert_eq!((first.ask(get("/open")).await.status, second.ask(get("/open")).await.status), (200, 200));
    let reply = Client::connect(server.address()).await.reply().await.unwrap();
    assert_eq!((reply.status, reply.code().as_str()), (503, "too_many_connections"));
    assert_eq!(reply.headers["retry-after"], "1");
    drop(first);
    until("the place", || sample.door.counted().connections_open == 1).await;
    assert_eq!(Client::connect(server.address()).await.ask(get("/open")).await.status, 200);
    assert_eq!(sample.door.counted().connections_refused_total, 1);
}

#[tokio::test]
async fn one_source_cannot_take_the_places_of_others() {
    let sample = Sample::new(vec![]);
    let server = sample.serve(ServerOptions { connections_per_source_max: 1, ..ServerOptions::default() });
    let from = async |last: u8| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), 0))).unwrap();
        Client::over(soon("connecting", socket.connect(server.address())).await.unwrap())
    };
    let mut first = from(1).await;
    assert_eq!(first.ask(get("/open")).await.status, 200);
    let reply = from(1).await.reply().await.unwrap();
    assert_eq!((reply.status, reply.code().as_str()), (429, "too_many_connections"));
    assert_eq!(from(2).await.ask(get("/open")).await.status, 200);
    assert_eq!(first.ask(get("/open")).await.status, 200);
    assert_eq!(sample.door.counted().connections_refused_source, 1);
}
