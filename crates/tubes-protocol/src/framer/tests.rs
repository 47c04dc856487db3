use super::{Framer, Item, Limits};
use crate::Command;

const LIMITS: Limits = Limits { body_bytes_max: 100, close_on_http: true };

/// Plays `input` in pieces of `step` bytes and returns the items in words.
fn play_in_steps(input: &[u8], step: usize, limits: &Limits) -> Vec<String> {
    let mut framer = Framer::new();
    let mut kept: Vec<u8> = Vec::new();
    let mut items = Vec::new();
    for piece in input.chunks(step) {
        kept.extend_from_slice(piece);
        let mut at = 0;
        loop {
            let (used, item) = framer.next(&kept[at..], limits);
            at += used;
            match item {
                None => break,
                Some(Item::Command(Command::Put { pri, body, .. })) => {
                    items.push(format!("put {pri} {:?}", String::from_utf8_lossy(&body)));
                }
                Some(Item::HttpRequest) => {
                    items.push("HttpRequest".to_owned());
                    return items;
                }
                Some(item) => items.push(format!("{item:?}")),
            }
        }
        kept.drain(..at);
        assert!(kept.len() < crate::LINE_BYTES_MAX, "kept {} bytes", kept.len());
    }
    items
}

#[track_caller]
fn check(input: &[u8], expected: &[&str]) {
    for step in (1..=input.len().min(40)).chain([input.len()]) {
        assert_eq!(play_in_steps(input, step, &LIMITS), expected, "in steps of {step} bytes");
    }
}

#[test]
fn commands_come_out_alike_in_any_segmentation() {
    check(
        b"reserve\r\nput 1 0 0 3\r\nabc\r\nput 2 0 0 0\r\n\r\nquit\r\n",
        &["Command(Reserve { timeout_s: None })", "put 1 \"abc\"", "put 2 \"\"", "Quit"],
    );
}

#[test]
fn lone_cr_and_lf_are_ordinary_bytes() {
    check(b"a\rb\nc\r\nreserve\r\n", &["UnknownCommand", "Command(Reserve { timeout_s: None })"]);
    check(b"\n\r\r\n", &["UnknownCommand"]);
}

#[test]
fn a_longest_line_is_read_and_one_byte_more_is_skipped() {
    let mut line = b"pause-tube ".to_vec();
    line.extend_from_slice(&[b'a'; 200]);
    line.extend_from_slice(b" 4294967295\r\n");
    assert_eq!(line.len(), crate::LINE_BYTES_MAX);
    assert!(play_in_steps(&line, 7, &LIMITS)[0].starts_with("Command(PauseTube"));
    for extra in [1, 2, 5, 300] {
        let mut long = vec![b'x'; crate::LINE_BYTES_MAX - 2 + extra];
        long.extend_from_slice(b"\r\nquit\r\n");
        check(&long, &["BadFormat", "Quit"]);
    }
}

#[test]
fn a_long_line_ends_only_at_cr_lf() {
    let mut long = vec![b'x'; 300];
    long.extend_from_slice(b"\r\r\n");
    long.extend_from_slice(b"quit\r\n");
    check(&long, &["BadFormat", "Quit"]);
    let mut long = vec![b'x'; 300];
    long.extend_from_slice(b"\n\n\rquit\r\nquit\r\n");
    check(&long, &["BadFormat", "Quit"]);
}

#[test]
fn a_body_is_exactly_its_bytes_whatever_they_are() {
    check(b"put 0 0 0 4\r\n\r\n\r\n\r\nquit\r\n", &["put 0 \"\\r\\n\\r\\n\"", "Quit"]);
    check(b"put 0 0 0 2\r\nabcdquit\r\n", &["ExpectedCrlf", "Quit"]);
}

#[test]
fn a_body_over_the_limit_is_skipped_also_with_garbage_behind_the_numbers() {
    let mut input = b"put 0 0 0 101 garbage\r\n".to_vec();
    input.extend_from_slice(&b"delete 1\r\n".repeat(10));
    input.extend_from_slice(b"abc");
    input.extend_from_slice(b"quit\r\n");
    check(&input, &["JobTooBig", "Quit"]);
}

#[test]
fn garbage_behind_the_numbers_does_not_skip_the_body() {
    check(b"put 0 0 0 4 x\r\nquit\r\n", &["BadFormat", "Quit"]);
    check(b"put 0 0 0 x\r\nquit\r\n", &["BadFormat", "Quit"]);
}

#[test]
fn a_large_body_takes_no_memory_before_it_arrives() {
    let limits = Limits { body_bytes_max: 1 << 30, close_on_http: true };
    let mut framer = Framer::new();
    let (used, item) = framer.next(b"put 0 0 0 1073741824\r\nabc", &limits);
    assert_eq!((used, item), (25, None));
    assert!(framer.body_bytes_held() <= 64 * 1024);
}

#[test]
fn an_http_request_as_the_first_line_is_recognised_in_any_segmentation_and_length() {
    check(b"POST / HTTP/1.1\r\nHost: x\r\n", &["HttpRequest"]);
    let mut long = b"GET /".to_vec();
    long.extend_from_slice(&[b'a'; 500]);
    long.extend_from_slice(b" HTTP/1.0\r\nput 0 0 0 1\r\n");
    for step in [1, 3, 100, 600] {
        assert_eq!(play_in_steps(&long, step, &LIMITS)[0], "HttpRequest");
    }
}

#[test]
fn http_on_a_later_line_or_when_turned_off_is_an_unknown_command() {
    check(b"quit\r\nGET / HTTP/1.1\r\n", &["Quit", "UnknownCommand"]);
    let off = Limits { close_on_http: false, ..LIMITS };
    assert_eq!(play_in_steps(b"GET / HTTP/1.1\r\n", 4, &off), ["UnknownCommand"]);
}
