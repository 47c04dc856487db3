//! A client that sends exactly the bytes it is told to.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Ends what hangs; nothing is measured by it.
pub(crate) const OUTER_LIMIT: Duration = Duration::from_secs(60);

/// Waits at most [`OUTER_LIMIT`].
pub(crate) async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    tokio::time::timeout(OUTER_LIMIT, future).await.unwrap_or_else(|_| panic!("{what} takes more than {OUTER_LIMIT:?}"))
}

/// Asks until it is so.
pub(crate) async fn until(what: &str, mut so: impl FnMut() -> bool) {
    soon(what, async {
        while !so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// An answer.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The code, after looking at the problem's shape.
    pub(crate) fn code(&self) -> String {
        assert_eq!(self.headers["content-type"], "application/problem+json", "{self:?}");
        assert!(self.headers.contains_key("x-request-id") || self.headers["connection"] == "close", "{self:?}");
        let document = self.json();
        assert_eq!(document["status"], self.status, "{document}");
        assert!(document["title"].is_string() && document["detail"].is_string(), "{document}");
        document["code"].as_str().unwrap().to_owned()
    }
}

/// A connection.
pub(crate) struct Client<T = TcpStream> {
    stream: T,
    kept: Vec<u8>,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Client {
        Client::over(soon("connecting", TcpStream::connect(address)).await.unwrap())
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> Client<T> {
    pub(crate) fn over(stream: T) -> Client<T> {
        Client { stream, kept: Vec::new() }
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        soon("sending", self.stream.write_all(bytes.as_ref())).await.unwrap();
    }

    /// Sends what may be refused half-way.
    pub(crate) async fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
        soon("sending", self.stream.write_all(bytes.as_ref())).await
    }

    /// The next answer, or `None` if the connection ends without one.
    pub(crate) async fn reply(&mut self) -> Option<Reply> {
        soon("an answer", async {
            let head_end = loop {
                if let Some(place) = self.kept.windows(4).position(|four| four == b"\r\n\r\n") {
                    break place + 4;
                }
                if self.read_more().await == 0 {
                    assert!(self.kept.is_empty(), "{:?}", String::from_utf8_lossy(&self.kept));
                    return None;
                }
            };
            let head = String::from_utf8(self.kept.drain(..head_end).collect()).unwrap();
            let mut lines = head.lines();
            let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
            let headers: BTreeMap<String, String> = lines
                .filter_map(|line| line.split_once(": "))
                .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
                .collect();
            let length = headers.get("content-length").map_or(0, |length| length.parse::<usize>().unwrap());
            while self.kept.len() < length {
                assert!(self.read_more().await > 0, "an answer was cut");
            }
            Some(Reply { status, headers, body: self.kept.drain(..length).collect() })
        })
        .await
    }

    async fn read_more(&mut self) -> usize {
        let mut buffer = [0; 16 * 1024];
        // A reset is an end too.
        let bytes = self.stream.read(&mut buffer).await.unwrap_or(0);
        self.kept.extend_from_slice(&buffer[..bytes]);
        bytes
    }

    pub(crate) async fn ask(&mut self, request: impl AsRef<[u8]>) -> Reply {
        self.send(request).await;
        self.reply().await.expect("an answer")
    }

    /// That the connection ends without another byte.
    pub(crate) async fn ends(&mut self) {
        let reply = self.reply().await;
        assert!(reply.is_none(), "{reply:?}");
    }
}

/// A GET without a key.
pub(crate) fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n")
}

/// A POST of JSON without a key.
pub(crate) fn post(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}
