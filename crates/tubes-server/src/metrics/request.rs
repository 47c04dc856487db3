//! What a request is answered with, from its bytes alone.

/// Longest request, in bytes; a scraper's has some 300.
pub(super) const REQUEST_BYTES_MAX: usize = 8 * 1024;
/// Most header fields of a request.
const FIELDS_MAX: usize = 64;

/// What to do with the bytes so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// More must come.
    Unfinished,
    /// The figures are asked for.
    Metrics,
    /// Something else is, or nothing that can be understood: this status, with its reason.
    Refused(&'static str),
}

const BAD: Verdict = Verdict::Refused("400 Bad Request");
const TOO_LARGE: Verdict = Verdict::Refused("431 Request Header Fields Too Large");
/// What `GET` does not do here.
pub(super) const NOT_ALLOWED: &str = "405 Method Not Allowed";

/// Judges a request of which `bytes` have come.
pub(super) fn judge(bytes: &[u8]) -> Verdict {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return if bytes.len() >= REQUEST_BYTES_MAX { TOO_LARGE } else { Verdict::Unfinished };
    };
    let Ok(head) = std::str::from_utf8(&bytes[..end]) else { return BAD };
    let mut lines = head.split("\r\n");
    let line: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    let [method, target, version] = line[..] else { return BAD };
    let is_method = !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'-');
    if !is_method || target.is_empty() || !head.bytes().all(|byte| byte >= 0x20 || b"\r\n\t".contains(&byte)) {
        return BAD;
    }
    let (mut fields, mut hosts) = (0, 0);
    for line in lines {
        fields += 1;
        let Some((name, _)) = line.split_once(':') else { return BAD };
        if name.is_empty() || name.bytes().any(|byte| !byte.is_ascii_graphic()) {
            return BAD;
        }
        hosts += usize::from(name.eq_ignore_ascii_case("host"));
    }
    match version {
        _ if fields > FIELDS_MAX => TOO_LARGE,
        "HTTP/1.1" if hosts != 1 => BAD,
        "HTTP/1.1" | "HTTP/1.0" => match (method, target.split('?').next()) {
            ("GET", Some("/metrics")) => Verdict::Metrics,
            (_, Some("/metrics")) => Verdict::Refused(NOT_ALLOWED),
            _ => Verdict::Refused("404 Not Found"),
        },
        _ if version.starts_with("HTTP/") => Verdict::Refused("505 HTTP Version Not Supported"),
        _ => BAD,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_request_is_answered_and_all_others_are_refused_by_their_kind() {
        let host = "\r\nHost: x\r\n\r\n";
        for (request, expected) in [
            (format!("GET /metrics HTTP/1.1{host}"), Verdict::Metrics),
            (format!("GET /metrics?name=x HTTP/1.1{host}"), Verdict::Metrics),
            ("GET /metrics HTTP/1.0\r\n\r\n".into(), Verdict::Metrics),
            (format!("GET /metrics HTTP/1.1{host}more"), Verdict::Metrics),
            (format!("POST /metrics HTTP/1.1{host}"), Verdict::Refused(NOT_ALLOWED)),
            (format!("HEAD /metrics HTTP/1.1{host}"), Verdict::Refused(NOT_ALLOWED)),
            (format!("GET / HTTP/1.1{host}"), Verdict::Refused("404 Not Found")),
            (format!("GET /metrics/../x HTTP/1.1{host}"), Verdict::Refused("404 Not Found")),
            (format!("GET http://x/metrics HTTP/1.1{host}"), Verdict::Refused("404 Not Found")),
            (format!("GET /metrics HTTP/2.0{host}"), Verdict::Refused("505 HTTP Version Not Supported")),
            ("GET /metrics HTTP/1.1\r\n\r\n".into(), BAD),
            (format!("GET /metrics HTTP/1.1\r\nHost: y{host}"), BAD),
            (format!("GET  /metrics HTTP/1.1{host}"), BAD),
            (format!("GET /metrics{host}"), BAD),
            (format!("G\0T /metrics HTTP/1.1{host}"), BAD),
            (format!("GET /metrics HTTP/1.1\r\n folded: x{host}"), BAD),
            (format!("GET /metrics HTTP/1.1\r\nno colon{host}"), BAD),
            ("put 0 0 0 0\r\n\r\n\r\n\r\n".into(), BAD),
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n".into(), Verdict::Unfinished),
            (String::new(), Verdict::Unfinished),
            (format!("GET /metrics HTTP/1.1\r\n{}Host: x\r\n\r\n", "a: b\r\n".repeat(64)), TOO_LARGE),
            ("x".repeat(REQUEST_BYTES_MAX), TOO_LARGE),
        ] {
            assert_eq!(judge(request.as_bytes()), expected, "{request:?}");
        }
        assert_eq!(judge(b"GET /metrics HTTP/1.1\r\nHost: \xff\r\n\r\n"), BAD);
    }
}
