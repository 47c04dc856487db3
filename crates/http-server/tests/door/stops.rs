//! The end of a server.

use std::time::Duration;

use http_server::{ServerOptions, Stopped};
use tokio::net::TcpStream;

use crate::sample::{LONG, Sample};
use crate::wire::{Client, get, post, soon, until};

#[tokio::test]
async fn requests_under_way_end_and_nothing_new_begins() {
    let sample = Sample::new(vec![]);
    let server = sample.serve(ServerOptions::default());
    let address = server.address();
    let mut idle = Client::connect(address).await;
    assert_eq!(idle.ask(get("/open")).await.status, 200);
    let mut fresh = Client::connect(address).await;
    let mut busy = Client::connect(address).await;
    busy.send(post("/v1/hold", "")).await;
    soon("the call", sample.shared.held.notified()).await;

    let stop = tokio::spawn(server.stop(LONG));
    idle.ends().await;
    fresh.ends().await;
    assert!(soon("connecting", TcpStream::connect(address)).await.is_err(), "it accepts after the stop");
    assert!(!stop.is_finished());
    sample.shared.release.notify_one();
    let reply = busy.reply().await.unwrap();
    assert_eq!((reply.status, reply.headers["connection"].as_str()), (200, "close"));
    busy.ends().await;
    assert_eq!(soon("the stop", stop).await.unwrap(), Stopped { cut: 0 });
    assert_eq!(sample.audit.entries.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn what_does_not_end_in_time_is_cut_and_its_entry_is_kept() {
    let sample = Sample::new(vec![]);
    let server = sample.serve(ServerOptions::default());
    let mut busy = Client::connect(server.address()).await;
    busy.send(post("/v1/hold", "")).await;
    soon("the call", sample.shared.held.notified()).await;
    let stopped = soon("the stop", server.stop(Duration::from_millis(50))).await;
    assert_eq!(stopped, Stopped { cut: 1 });
    busy.ends().await;
    let entries = sample.audit.entries.lock().unwrap();
    assert_eq!(entries.iter().map(|entry| entry.status).collect::<Vec<_>>(), [None]);
}

#[tokio::test]
async fn calls_that_wait_are_told_of_the_stop() {
    let sample = Sample::new(vec![]);
    let server = sample.serve(ServerOptions::default());
    let mut client = Client::connect(server.address()).await;
    client.send(get("/v1/watch")).await;
    soon("the call", sample.shared.held.notified()).await;
    let stop = tokio::spawn(server.stop(LONG));
    assert_eq!(client.reply().await.unwrap().body, b"stopping");
    assert_eq!(soon("the stop", stop).await.unwrap(), Stopped { cut: 0 });
}

#[tokio::test]
async fn a_server_that_is_dropped_is_gone() {
    let sample = Sample::new(vec![]);
    let server = sample.serve(ServerOptions::default());
    let mut client = Client::connect(server.address()).await;
    assert_eq!(client.ask(get("/open")).await.status, 200);
    drop(server);
    client.ends().await;
    until("the end", || sample.door.counted().connections_open == 0).await;
}
