//! Parameters and columns: what the texts and numbers of the tests stand for.

use database_core::Value;

use super::super::{State, Ticket};

pub(super) fn uuid(value: &Value) -> u128 {
    let Value::Uuid(id) = value else { panic!("{value:?} should be an id") };
    *id
}

pub(super) fn int(value: &Value) -> i64 {
    let Value::Int(number) = value else { panic!("{value:?} should be a number") };
    *number
}

pub(super) fn text(value: &Value) -> &str {
    let Value::Text(text) = value else { panic!("{value:?} should be a text") };
    text
}

pub(super) fn uuids(value: &Value) -> &[u128] {
    let Value::Uuids(ids) = value else { panic!("{value:?} should be ids") };
    ids
}

/// Names of keys, runs and settings as numbers: `k12`, `r12`, `c12`, and a few that the cases of interleavings use.
pub(super) fn number(text: &str) -> u32 {
    let known = KNOWN.iter().position(|known| *known == text).map(|place| KNOWN_FROM + place as u32);
    known.unwrap_or_else(|| text[1..].parse().expect("names of the tests end in a number"))
}

/// What [`number`] read.
pub(super) fn name(letter: char, number: u32) -> Value {
    let known = number.checked_sub(KNOWN_FROM).and_then(|place| KNOWN.get(place as usize));
    Value::Text(known.map_or_else(|| format!("{letter}{number}"), |known| (*known).to_owned()))
}

const KNOWN: [&str; 6] = ["key", "name", "a", "b", "run", "runs"];
const KNOWN_FROM: u32 = 1_000_000;

pub(super) fn window_us(word: &str) -> i64 {
    match word {
        "minute" => 60_000_000,
        "hour" => 3_600_000_000,
        _ => 86_400_000_000,
    }
}

pub(super) fn leader_name(text: &str) -> u8 {
    u8::from(text != cluster_core::leadership::SCHEDULER)
}

pub(super) fn leader_text(name: u8) -> &'static str {
    if name == 0 { cluster_core::leadership::SCHEDULER } else { cluster_core::leadership::DISPATCH }
}

pub(super) fn holder(kind: &Value, holder: &Value) -> (bool, u128) {
    let is_member = text(kind) == "member";
    let holder = text(holder);
    let id = if is_member { u128::from_str_radix(holder, 16).expect("a member") } else { u128::from(number(holder)) };
    (is_member, id)
}

pub(super) fn holder_text(is_member: bool, id: u128) -> Value {
    Value::Text(if is_member { format!("{id:032x}") } else { format!("r{id}") })
}

pub(super) fn ticket(params: &[Value]) -> Ticket {
    let (is_member, holder) = holder(&params[2], &params[3]);
    Ticket { is_lane: text(&params[0]) == "lane", key: number(text(&params[1])), is_member, holder }
}

pub(super) fn kind_text(is_lane: bool) -> Value {
    Value::Text(if is_lane { "lane".into() } else { "permit".into() })
}

pub(super) fn kind_word(is_member: bool) -> Value {
    Value::Text(if is_member { "member".into() } else { "run".into() })
}

pub(super) fn state(word: &str) -> State {
    match word {
        "ready" => State::Ready,
        "waiting" => State::Waiting,
        "running" => State::Running,
        _ => State::Done,
    }
}
