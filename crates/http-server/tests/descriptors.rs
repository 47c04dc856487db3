//! What the door does without descriptors. A process of its own, as the limit is the process's.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_server::{Door, DoorOptions, Routes, Server, ServerOptions};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};
use std::io::{Read as _, Write as _};

/// More than this process has when it begins.
const DESCRIPTORS: u64 = 256;
/// Ends what hangs; nothing is measured by it.
const OUTER_LIMIT: Duration = Duration::from_secs(60);

#[test]
fn without_descriptors_accepting_rests_and_one_client_is_told() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let door = Arc::new(Door::new(Routes::new(), DoorOptions::new("Sample", "1")));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let server = {
        let _inside = runtime.enter();
        Server::start(listener, Arc::clone(&door), None, ServerOptions::default()).unwrap()
    };
    // Clients are made while there are descriptors, and connect when there is none left for the other end.
    let mut clients: Vec<Socket> = (0..8).map(|_| Socket::new(Domain::IPV4, Type::STREAM, None).unwrap()).collect();
    let before = getrlimit(Resource::Nofile);
    // Whatever this process was given, there is no descriptor left.
    setrlimit(Resource::Nofile, Rlimit { current: Some(DESCRIPTORS), maximum: before.maximum }).unwrap();
    let fill: Vec<std::fs::File> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    assert!(!fill.is_empty());
    for client in &clients {
        client.set_read_timeout(Some(OUTER_LIMIT)).unwrap();
        client.connect(&address.into()).unwrap();
    }

    // The first is shed by the spare descriptor: it reads its end.
    let began = Instant::now();
    let shed = clients.remove(0);
    assert!(matches!((&shed).read(&mut [0; 16]), Ok(0) | Err(_)));
    // It rests 10, 20, 40, … ms, so a second has room for a handful of attempts and a busy loop would make thousands.
    while door.counted().accept_pauses < 5 {
        assert!(began.elapsed() < OUTER_LIMIT, "{:?}", door.counted());
        std::thread::sleep(Duration::from_millis(5));
    }
    let attempts = door.counted().accept_pauses;
    assert!(
        attempts <= 8 + 2 * (began.elapsed().as_millis() as u64 / 10).ilog2() as u64,
        "{attempts} attempts in {:?}",
        began.elapsed()
    );

    setrlimit(Resource::Nofile, before).unwrap();
    drop((clients, fill));
    let mut client = std::net::TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(OUTER_LIMIT)).unwrap();
    client.write_all(b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert_eq!(runtime.block_on(server.stop(OUTER_LIMIT)).cut, 0);
}
