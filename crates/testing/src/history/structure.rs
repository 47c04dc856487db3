//! Checks that need no rules: order, numbers, ids, spans, bodies, and what is left in the end.

use std::collections::{BTreeMap, BTreeSet};

use super::parse::{Command, Decision, Event, History, Invocation, Reply, owner_of};
use super::processes::FRONTENDS_FROM;
use super::{Kind, Report};

pub(super) fn check(history: &History, report: &mut Report) {
    generations(history, report);
    for (generation, events) in &history.events {
        sequences(*generation, events, report);
    }
    decisions(history, report);
    real_time(history, report);
    ids(history, report);
    owners(history, report);
    after_drain(history, report);
    bodies(history, report);
    spans(history, report);
    conservation(history, report);
    let commands = history.connections.values().flat_map(|connection| &connection.commands);
    report.unknown = commands.filter(|command| command.reply.is_none() && !command.failed).count() as u64;
}

fn generations(history: &History, report: &mut Report) {
    let mut last: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for (life, start_ns) in &history.starts {
        let before = last.insert(owner_of(*life), (*life, *start_ns));
        if let Some((before, before_ns)) = before
            && (before >= *life || before_ns > *start_ns)
        {
            report.add(Kind::Generation, format!("generation {life:#x} starts behind generation {before:#x}"));
        }
        for (earlier, events) in history.events.range(..life) {
            let late = events.iter().find(|event| owner_of(*earlier) == owner_of(*life) && event.at_ns > *start_ns);
            if let Some(event) = late {
                let what =
                    format!("number {} of generation {earlier:#x} is decided after {life:#x} started", event.sequence);
                report.add(Kind::Stale, what);
            }
        }
    }
}

fn sequences(generation: u64, events: &[Event], report: &mut Report) {
    let numbered = events.iter().filter(|event| event.what != Decision::Accept);
    let mut expected = 1;
    let mut last_ns = 0;
    for event in numbered {
        if event.sequence != expected {
            let what = format!("generation {generation}: number {} where {expected} was due", event.sequence);
            report.add(Kind::Sequence, what);
        }
        if event.at_ns < last_ns {
            let what = format!("generation {generation}: number {} goes back in time", event.sequence);
            report.add(Kind::Causality, what);
        }
        expected = event.sequence + 1;
        last_ns = event.at_ns;
    }
}

/// The invocation that an event decides, with the event's place in the whole order.
fn decided(history: &History) -> impl Iterator<Item = (u64, &Event, u64, u64, Option<&Invocation>)> {
    history.events.iter().flat_map(move |(generation, events)| {
        events.iter().filter_map(move |event| match (event.what, event.connection) {
            (Decision::Reply(number), Some(key)) => {
                let commands = &history.connections[&key].commands;
                let place = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
                Some((*generation, event, key, number, place.and_then(|place| commands.get(place))))
            }
            _ => None,
        })
    })
}

/// Where a command was decided: its number, the life, between when and when in ns, and as which number of that life.
type Place = (u64, u64, u64, u64, u64);

fn decisions(history: &History, report: &mut Report) {
    let mut seen = BTreeSet::new();
    let mut decided_of: BTreeMap<u64, Vec<Place>> = BTreeMap::new();
    for (generation, event, key, number, invocation) in decided(history) {
        let name = format!("command {number} of connection {key} (generation {generation}, number {})", event.sequence);
        if !seen.insert((key, number)) {
            report.add(Kind::DecidedTwice, name);
            continue;
        }
        decided_of.entry(key).or_default().push((number, generation, event.at_ns, event.until_ns, event.sequence));
        let Some(invocation) = invocation else {
            report.add(Kind::Causality, format!("{name} is decided, but was never sent"));
            continue;
        };
        if event.at_ns + TURN_NS_MAX < invocation.at_ns || invocation.failed {
            report.add(Kind::Causality, format!("{name} is decided before it was sent"));
        }
        if invocation.reply.as_ref().is_some_and(|(_, at_ns)| *at_ns < event.at_ns) {
            report.add(Kind::Causality, format!("{name} is answered before it was decided"));
        }
    }
    for (key, mut decided) in decided_of {
        decided.sort_unstable();
        let first = (0, decided[0].1, 0, 0, 0);
        let pairs = std::iter::once(&first).chain(&decided).zip(&decided);
        for ((number, life, at_ns, _, sequence), (next, next_life, _, next_ns, next_sequence)) in pairs {
            // Of the order between two owners only time tells. What a frontend answers by itself it may say after an
            // owner has decided what came behind.
            let is_said = owner_of(*life) >= u64::from(FRONTENDS_FROM);
            let is_behind = if life == next_life { next_sequence > sequence } else { is_said || next_ns >= at_ns };
            let is_next = (number + 1..*next).all(|between| is_local_and_unknown(history, key, between));
            if next <= number || !is_next || !is_behind {
                let what =
                    format!("command {next} of connection {key} is decided out of order, behind command {number}");
                report.add(Kind::ConnectionOrder, what);
            }
        }
    }
    for (key, connection) in &history.connections {
        for (place, invocation) in connection.commands.iter().enumerate() {
            let number = place as u64 + 1;
            if invocation.reply.is_some() && !seen.contains(&(*key, number)) {
                report.add(Kind::Untraced, format!("command {number} of connection {key} has a reply nobody decided"));
            }
        }
    }
}

/// A frontend may owe what it answers by itself when an owner has decided what came behind.
fn is_local_and_unknown(history: &History, key: u64, number: u64) -> bool {
    let place = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
    let invocation = place.and_then(|place| history.connections[&key].commands.get(place));
    !history.owners.is_empty()
        && invocation.is_some_and(|invocation| {
            let Command::Line(line) = &invocation.command else { return false };
            let word = line.split(' ').next().unwrap_or_default();
            invocation.reply.is_none() && matches!(word, "stats" | "list-tube-used" | "list-tubes-watched" | "ignore")
        })
}

/// A turn reads its clock when it begins; what arrives while it lasts is decided with that time.
const TURN_NS_MAX: u64 = 10_000_000_000;

/// If a reply was there before another command began, it was decided before it.
fn real_time(history: &History, report: &mut Report) {
    let all: Vec<_> = decided(history).collect();
    let mut earliest_replies: BTreeMap<u64, Option<(u64, String)>> = BTreeMap::new();
    for (generation, event, key, number, invocation) in all.into_iter().rev() {
        let Some(invocation) = invocation else { continue };
        let earliest_reply = earliest_replies.entry(owner_of(generation)).or_default();
        if let Some((reply_ns, later)) = earliest_reply.as_ref().filter(|(reply_ns, _)| *reply_ns < invocation.at_ns) {
            let what = format!(
                "command {number} of connection {key} begins at {} ns, but is decided (generation {generation}, number \
                 {}) before {later}, answered at {reply_ns} ns",
                invocation.at_ns, event.sequence
            );
            report.add(Kind::RealTime, what);
        }
        if let Some((_, at_ns)) = &invocation.reply
            && earliest_reply.as_ref().is_none_or(|(earliest_ns, _)| at_ns < earliest_ns)
        {
            *earliest_reply = Some((*at_ns, format!("command {number} of connection {key}")));
        }
    }
}

fn ids(history: &History, report: &mut Report) {
    let mut given = BTreeSet::new();
    let mut last_of: BTreeMap<u64, u64> = BTreeMap::new();
    for (life, _, key, number, invocation) in decided(history) {
        let Some(Invocation { reply: Some((Reply::Inserted(id), _)), .. }) = invocation else { continue };
        let last = last_of.entry(owner_of(life)).or_default();
        if !given.insert(*id) {
            report.add(Kind::IdReused, format!("command {number} of connection {key} gets id {id} again"));
        } else if id < last {
            report.add(Kind::IdNotRising, format!("command {number} of connection {key} gets id {id} behind {last}"));
        }
        *last = (*last).max(*id);
    }
}

/// A job has one owner for ever: only that one says more of it than `NOT_FOUND`.
fn owners(history: &History, report: &mut Report) {
    let mut owners: BTreeMap<u64, u64> = BTreeMap::new();
    for (life, _, key, number, invocation) in decided(history) {
        let Some(Invocation { command, reply: Some((reply, _)), .. }) = invocation else { continue };
        let id = match (command, reply) {
            (_, Reply::Inserted(id) | Reply::Reserved { id, .. } | Reply::Found { id, .. }) => Some(*id),
            (Command::Line(line), Reply::Line(said)) if said != "NOT_FOUND" => {
                let mut words = line.split(' ');
                let word = words.next().unwrap_or_default();
                let is_of_job = matches!(word, "delete" | "release" | "bury" | "touch" | "kick-job");
                words.next().filter(|_| is_of_job).and_then(|id| id.parse().ok())
            }
            _ => None,
        };
        let Some(id) = id.filter(|_| owner_of(life) < u64::from(FRONTENDS_FROM)) else { continue };
        let first = *owners.entry(id).or_insert(owner_of(life));
        if first != owner_of(life) {
            let what = format!(
                "command {number} of connection {key}: owner {} decides about job {id} of owner {first}",
                owner_of(life)
            );
            report.add(Kind::WrongOwner, what);
        }
    }
}

fn after_drain(history: &History, report: &mut Report) {
    let Some(drained_ns) = history.drained_ns else { return };
    for (_, event, key, number, invocation) in decided(history) {
        let is_put = matches!(invocation, Some(Invocation { reply: Some((Reply::Inserted(_), _)), .. }));
        if is_put && event.at_ns > drained_ns {
            let what = format!(
                "command {number} of connection {key} puts a job {} ns after the drain",
                event.at_ns - drained_ns
            );
            report.add(Kind::AfterDrain, what);
        }
    }
}

/// Every put whose id is known: id to hash and time to run. And the hashes of those whose id is not.
fn puts(history: &History) -> (BTreeMap<u64, (u64, u32)>, BTreeMap<u64, u32>) {
    let mut known = BTreeMap::new();
    let mut unknown = BTreeMap::new();
    for invocation in history.connections.values().flat_map(|connection| &connection.commands) {
        let Command::Put { hash, ttr_s, .. } = invocation.command else { continue };
        match &invocation.reply {
            Some((Reply::Inserted(id), _)) => {
                known.insert(*id, (hash, ttr_s.max(1)));
            }
            None if !invocation.failed => {
                unknown.insert(hash, ttr_s.max(1));
            }
            _ => {}
        }
    }
    (known, unknown)
}

fn bodies(history: &History, report: &mut Report) {
    let (known, unknown) = puts(history);
    // The id that an unknown put turned out to have.
    let mut settled: BTreeMap<u64, u64> = BTreeMap::new();
    let mut shown = Vec::new();
    for (_, _, key, number, invocation) in decided(history) {
        if let Some(Invocation { reply: Some((Reply::Reserved { id, hash } | Reply::Found { id, hash }, _)), .. }) =
            invocation
        {
            shown.push((*id, *hash, format!("command {number} of connection {key}")));
        }
    }
    for (id, hash) in history.present.iter().flatten() {
        shown.push((*id, *hash, "the end".to_owned()));
    }
    for (id, hash, by) in shown {
        match known.get(&id) {
            Some((put, _)) if *put != hash => {
                report.add(Kind::WrongBody, format!("{by} shows job {id} with another body"))
            }
            Some(_) => {}
            None if !unknown.contains_key(&hash) => {
                report.add(Kind::UnknownJob, format!("{by} shows job {id}, which nobody can have put"));
            }
            None => {
                let first = *settled.entry(hash).or_insert(id);
                if first != id {
                    report
                        .add(Kind::AppearsTwice, format!("{by} shows the unknown put of job {first} as job {id} too"));
                }
            }
        }
    }
}

/// A reservation as far as the clients' logs tell.
struct Span {
    connection: u64,
    /// After it the reservation may be over.
    until_ns: u64,
}

fn spans(history: &History, report: &mut Report) {
    let (known, unknown) = puts(history);
    let ttr_of = |id: u64, hash: u64| known.get(&id).map(|(_, ttr_s)| *ttr_s).or_else(|| unknown.get(&hash).copied());
    for events in history.events.values() {
        // A generation's end ends every span.
        let mut held: BTreeMap<u64, Span> = BTreeMap::new();
        for event in events {
            let Some(key) = event.connection else { continue };
            if event.what == Decision::Close {
                held.retain(|_, span| span.connection != key);
            }
            let Decision::Reply(number) = event.what else { continue };
            let place = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
            let commands = &history.connections[&key].commands;
            let Some(invocation) = place.and_then(|place| commands.get(place)) else { continue };
            match (&invocation.command, &invocation.reply) {
                (_, Some((Reply::Reserved { id, hash }, _))) => {
                    report.reservations += 1;
                    if let Some(span) = held.get(id).filter(|span| event.at_ns < span.until_ns) {
                        let what =
                            format!("job {id} goes to connection {key} while connection {} holds it", span.connection);
                        report.add(Kind::Overlap, what);
                    }
                    let ttr_ns = u64::from(ttr_of(*id, *hash).unwrap_or(0)) * 1_000_000_000;
                    held.insert(*id, Span { connection: key, until_ns: event.at_ns + ttr_ns });
                }
                (Command::Line(line), reply) => {
                    let mut words = line.split(' ');
                    let word = words.next().unwrap_or_default();
                    let id: Option<u64> = words.next().and_then(|id| id.parse().ok());
                    let Some(id) = id.filter(|_| matches!(word, "delete" | "release" | "bury" | "touch")) else {
                        continue;
                    };
                    match reply {
                        Some((Reply::Line(reply), _)) if reply == "NOT_FOUND" => {}
                        Some(_) if word == "touch" => {
                            if let Some(span) = held.get_mut(&id).filter(|span| span.connection == key) {
                                let ttr_s = known.get(&id).map_or(0, |(_, ttr_s)| *ttr_s);
                                span.until_ns = event.at_ns + u64::from(ttr_s) * 1_000_000_000;
                            }
                        }
                        // An unknown touch has moved the deadline, if anything: later only.
                        None if word == "touch" => {}
                        // An unknown one may have ended it.
                        _ => {
                            held.remove(&id);
                        }
                    }
                }
                _ => {}
            }
        }
    }
}

fn conservation(history: &History, report: &mut Report) {
    let Some(present) = &history.present else { return };
    let (known, unknown) = puts(history);
    let mut deleted = BTreeSet::new();
    let mut perhaps_deleted = BTreeSet::new();
    for invocation in history.connections.values().flat_map(|connection| &connection.commands) {
        let Command::Line(line) = &invocation.command else { continue };
        let Some(id) = line.strip_prefix("delete ").and_then(|id| id.trim().parse::<u64>().ok()) else { continue };
        match &invocation.reply {
            Some((Reply::Line(reply), _)) if reply == "DELETED" => {
                deleted.insert(id);
            }
            None if !invocation.failed => {
                perhaps_deleted.insert(id);
            }
            _ => {}
        }
    }
    for id in known.keys().filter(|id| !present.contains_key(id)) {
        if !deleted.contains(id) && !perhaps_deleted.contains(id) {
            report.add(Kind::Lost, format!("job {id} was put and never deleted, and is not there"));
        }
    }
    for id in present.keys().filter(|id| deleted.contains(id)) {
        report.add(Kind::Resurrected, format!("job {id} was deleted and is there"));
    }
    let strange = present.iter().filter(|(id, hash)| !known.contains_key(id) && !unknown.contains_key(hash));
    for (id, _) in strange {
        report.add(Kind::UnknownJob, format!("job {id} is there, and nobody can have put it"));
    }
}
