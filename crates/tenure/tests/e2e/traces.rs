//! Spans of the daemon under `tenure serve`, at a collector over loopback. What is in them is tested with the daemon; here,
//! that the processes of the program send them, and what their log says.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::mpsc::{Receiver, sync_channel};

use testing::process::{Address, Folder, Launch, OUTER_LIMIT, free_port, wait_until};

/// Calls that may be unread; the stop sends one, and every two seconds before that may send one.
const CALLS_MAX: usize = 1_024;

/// A collector that takes each call on its own connection, and its port. Its thread ends with the test's process.
fn collector() -> (u16, Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (calls, seen) = sync_channel(CALLS_MAX);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut reader = BufReader::new(stream.try_clone().expect("a descriptor"));
            let (mut length, mut line) = (0, String::new());
            while reader.read_line(&mut line).is_ok_and(|bytes| bytes > 2) {
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().expect("a length");
                }
                line.clear();
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).expect("a body");
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            let _ = calls.try_send(body);
        }
    });
    (port, seen)
}

#[test]
fn the_daemon_of_a_supervisor_sends_spans_and_its_log_has_none() {
    let (port, http_port, (collector, calls)) = (free_port(), free_port(), collector());
    let folder = Folder::new();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("mode");
    let account = Command::new("id").arg("-un").output().expect("the name of this account");
    let account = String::from_utf8(account.stdout).expect("a name in UTF-8");
    let file = folder.join("tenure.toml");
    let text = format!(
        "user = {:?}\n[data]\ndir = {:?}\n[tubes]\nlisten = \"127.0.0.1:{port}\"\n[http]\nlisten = \"127.0.0.1:{http_port}\"\n\
         [log]\nlevel = \"debug\"\n[telemetry]\notlp_endpoint = \"http://127.0.0.1:{collector}\"\n\
         service_name = \"tenure-of-the-test\"\n",
        account.trim(),
        folder.join("data")
    );
    fs::write(&file, text).expect("a file");
    let launch = Launch::serve(env!("CARGO_BIN_EXE_tenure"), &file, Address::Tcp(([127, 0, 0, 1], port).into()));
    let mut server = launch.spawn_only();
    let ask = || {
        let mut answer = String::new();
        let mut stream = TcpStream::connect(("127.0.0.1", http_port)).ok()?;
        let request = "GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\
                       traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n\r\n";
        stream.write_all(request.as_bytes()).ok()?;
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    };
    wait_until("it answers", || {
        assert!(server.is_running(), "{server:?}");
        ask().is_some_and(|answer| answer.starts_with("HTTP/1.1 200"))
    });
    assert!(server.terminate().success(), "{server:?}");

    // The daemon has sent all before it ended, and the answers were awaited.
    let body = calls.recv_timeout(OUTER_LIMIT).expect("spans come");
    let trace = [0x0a, 0xf7, 0x65, 0x19, 0x16, 0xcd, 0x43, 0xdd, 0x84, 0x48, 0xeb, 0x21, 0x1c, 0x80, 0x31, 0x9c];
    for wanted in [b"GET /healthz".as_slice(), b"tenure-of-the-test", &trace] {
        assert!(body.windows(wanted.len()).any(|found| found == wanted), "{wanted:?} is not in {body:?}");
    }
    let log = server.stderr();
    assert!(log.contains(&format!("spans are sent to http://127.0.0.1:{collector}")), "{log}");
    let of_request = log.lines().find(|line| line.contains("path=\"/healthz\"")).expect("a line of the access log");
    assert!(!of_request.contains("otel.") && !of_request.contains("request{"), "{of_request}");
}
