use super::*;
use crate::{Reader, Writer};

fn ends() -> (Link, Link) {
    let one = Link { own_slot: 1, own_generation: 7, peer_slot: 2, peer_generation: 9 };
    let other = Link { own_slot: 2, own_generation: 9, peer_slot: 1, peer_generation: 7 };
    (one, other)
}

/// All that may be sent now.
fn all_of(writer: &mut Writer) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let bytes = writer.sendable();
        if bytes.is_empty() {
            return all;
        }
        all.extend_from_slice(bytes);
        let count = bytes.len();
        writer.sent(count);
    }
}

fn bytes_of(link: Link, messages: &[(u8, u64, &[u8])]) -> Vec<u8> {
    let mut writer = Writer::new(link);
    for (kind, session, payload) in messages {
        writer.message(MessageHead { kind: *kind, session: *session }, |out| out.extend_from_slice(payload));
    }
    writer.end_turn(None);
    all_of(&mut writer)
}

type Taken = Vec<(u8, u64, Vec<u8>)>;

fn read(link: Link, pieces: &[&[u8]]) -> (Result<(), FrameError>, Taken, u64) {
    let mut reader = Reader::new(link);
    let mut taken = Vec::new();
    let result = pieces.iter().try_for_each(|piece| {
        reader.push(piece);
        while let Some((head, payload)) = reader.next()? {
            taken.push((head.kind, head.session, payload.to_vec()));
        }
        Ok(())
    });
    (result, taken, reader.dropped())
}

#[test]
fn messages_arrive_in_any_segmentation() {
    let (one, other) = ends();
    let bytes = bytes_of(one, &[(1, 5, b"abc"), (2, 6, b""), (3, u64::MAX, &[9; 1000])]);
    for step in [1, 7, 39, 40, 41, bytes.len()] {
        let pieces: Vec<&[u8]> = bytes.chunks(step).collect();
        let (result, taken, _) = read(other, &pieces);
        assert_eq!(result, Ok(()));
        assert_eq!(taken, [(1, 5, b"abc".to_vec()), (2, 6, vec![]), (3, u64::MAX, vec![9; 1000])]);
    }
}

#[test]
fn a_cut_at_any_byte_hands_out_whole_batches_only() {
    let (one, other) = ends();
    let bytes = bytes_of(one, &[(1, 5, b"abc")]);
    for cut in 0..bytes.len() {
        let (result, taken, _) = read(other, &[&bytes[..cut]]);
        assert_eq!((result, taken.len()), (Ok(()), 0), "cut at {cut}");
    }
}

#[test]
fn every_flipped_bit_is_found() {
    let (one, other) = ends();
    let bytes = bytes_of(one, &[(1, 5, b"abc")]);
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let (result, taken, _) = read(other, &[&flipped]);
        // A larger length only makes the reader wait for bytes that do not come.
        let waits = result == Ok(()) && (32..64).contains(&bit);
        assert!(result.is_err() || waits, "bit {bit}: {result:?}");
        assert!(taken.is_empty(), "bit {bit}");
    }
}

#[test]
fn a_batch_for_an_earlier_generation_is_dropped_and_one_from_a_stranger_resets() {
    let (one, other) = ends();
    let bytes = bytes_of(Link { peer_generation: 8, ..one }, &[(1, 5, b"abc")]);
    assert_eq!(read(other, &[&bytes]), (Ok(()), vec![], 1));
    let bytes = bytes_of(Link { own_generation: 6, ..one }, &[(1, 5, b"abc")]);
    assert_eq!(read(other, &[&bytes]).0, Err(FrameError::Source { slot: 1, generation: 6 }));
}

#[test]
fn a_repeated_batch_resets_and_an_absurd_length_is_refused() {
    let (one, other) = ends();
    let bytes = bytes_of(one, &[(1, 5, b"abc")]);
    assert_eq!(read(other, &[&bytes, &bytes]).0, Err(FrameError::Sequence { expected: 2, found: 1 }));
    let mut long = bytes;
    long[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(read(other, &[&long]).0, Err(FrameError::Length(u32::MAX)));
}

/// Two joined ends, as the shells drive them.
struct Pair {
    writer: Writer,
    reader: Reader,
    taken: Taken,
}

impl Pair {
    fn new() -> Self {
        let (one, other) = ends();
        Pair { writer: Writer::new(one), reader: Reader::new(other), taken: Vec::new() }
    }

    fn say(&mut self, session: u64, payload: &[u8]) {
        self.writer.message(MessageHead { kind: 1, session }, |out| out.extend_from_slice(payload));
    }

    /// One write of the sender reaches the receiver; `false` if there is none.
    fn write(&mut self) -> bool {
        let bytes = self.writer.sendable();
        let count = bytes.len();
        self.reader.push(bytes);
        self.writer.sent(count);
        while let Some((head, payload)) = self.reader.next().expect("the bytes are right") {
            self.taken.push((head.kind, head.session, payload.to_vec()));
        }
        count > 0
    }

    fn sessions(&self) -> Vec<u64> {
        self.taken.iter().map(|taken| taken.1).collect()
    }
}

#[test]
fn a_large_message_travels_in_pieces_between_those_of_others_and_keeps_its_session_in_order() {
    let mut pair = Pair::new();
    let large: Vec<u8> = (0..1_000_000_u32).map(|at| (at % 251) as u8).collect();
    pair.say(1, b"before");
    pair.say(1, &large);
    pair.say(1, b"behind");
    pair.say(2, b"other");
    pair.writer.end_turn(None);
    assert!(pair.write());
    assert_eq!(pair.sessions(), [1, 2], "the small ones have not waited for the large one");
    pair.say(3, b"later");
    pair.writer.end_turn(None);
    while pair.write() {}
    assert_eq!(pair.sessions(), [1, 2, 3, 1, 1]);
    assert_eq!(pair.taken[3].2, large);
    assert_eq!(pair.taken[4].2, b"behind");
    assert_eq!((pair.writer.backlog(), pair.writer.large_backlog()), (0, 0));
}

#[test]
fn large_messages_of_several_sessions_share_the_link() {
    let mut pair = Pair::new();
    for session in 1..=3 {
        pair.say(session, &vec![session as u8; 300_000 * session as usize]);
    }
    pair.writer.end_turn(None);
    pair.writer.peer_has_taken(0);
    while pair.write() {}
    assert_eq!(pair.sessions(), [1, 2, 3], "the shortest is through first");
}

#[test]
fn what_waits_for_the_log_is_held_with_all_behind_it_in_pieces_too() {
    let mut pair = Pair::new();
    let large = vec![7; 100_000];
    pair.say(1, b"free");
    pair.writer.end_turn(None);
    pair.say(1, b"held");
    pair.say(2, &large);
    pair.writer.end_turn(Some(5));
    pair.say(3, b"behind");
    pair.say(4, &large);
    pair.writer.end_turn(Some(6));
    while pair.write() {}
    assert_eq!(pair.sessions(), [1]);
    pair.writer.release(4);
    while pair.write() {}
    assert_eq!(pair.sessions(), [1]);
    pair.writer.release(5);
    while pair.write() {}
    assert_eq!(pair.sessions(), [1, 1, 2]);
    pair.writer.release(6);
    while pair.write() {}
    assert_eq!(pair.sessions(), [1, 1, 2, 3, 4]);
}

#[test]
fn a_turn_of_many_batches_is_held_as_one() {
    let mut pair = Pair::new();
    pair.say(1, b"free");
    pair.writer.end_turn(None);
    for session in 0..100 {
        pair.say(session, &vec![0; 50_000]);
    }
    pair.writer.end_turn(Some(1));
    while pair.write() {}
    assert_eq!(pair.sessions(), [1]);
    pair.writer.release(1);
    let mut count = 0;
    while pair.write() {
        count += 1;
        let taken = pair.reader.taken();
        pair.writer.peer_has_taken(taken);
    }
    assert_eq!(pair.taken.len(), 101);
    assert!((15..=25).contains(&count), "some 256 KiB at a time: {count}");
}

#[test]
fn a_sender_keeps_what_the_receiver_has_no_room_for_and_goes_on_when_it_is_told() {
    let (one, other) = ends();
    let mut pair = Pair::new();
    let mut back = (Writer::new(other), Reader::new(one));
    for session in 0..200 {
        pair.say(session, &vec![0; 60_000]);
        pair.writer.end_turn(None);
    }
    while pair.write() {}
    let before = pair.taken.len();
    let taken = pair.reader.taken();
    assert!((WINDOW_BYTES..WINDOW_BYTES + BATCH_BYTES_TARGET as u64 + 60_000).contains(&taken), "{taken}");
    assert!(pair.writer.backlog() > 7_000_000);
    // A receiver that cannot go on says nothing.
    assert!(back.0.sendable().is_empty());
    back.0.tell_taken(taken);
    let bytes = all_of(&mut back.0);
    assert_eq!(bytes.len(), HEADER_BYTES, "a batch without messages");
    back.1.push(&bytes);
    assert_eq!(back.1.next(), Ok(None));
    pair.writer.peer_has_taken(back.1.taken_by_peer());
    while pair.write() {}
    assert!(pair.taken.len() > before + 60);
    // Messages the other way carry the word too, however little was taken.
    back.0.tell_taken(pair.reader.taken());
    back.0.message(MessageHead { kind: 1, session: 1 }, |out| out.push(1));
    back.0.end_turn(None);
    back.1.push(&all_of(&mut back.0));
    while back.1.next().expect("the bytes are right").is_some() {}
    pair.writer.peer_has_taken(back.1.taken_by_peer());
    while pair.write() {}
    assert_eq!(pair.taken.len(), 200);
}

#[test]
fn pieces_that_do_not_belong_together_reset_the_link() {
    let (one, other) = ends();
    let mut writer = Writer::new(one);
    writer.message(MessageHead { kind: 1, session: 5 }, |out| out.resize(100_000, 1));
    writer.end_turn(None);
    let first = writer.sendable()[..HEADER_BYTES + MESSAGE_HEADER_BYTES + CHUNK_BYTES].to_vec();
    for (kind, part, fails) in [(1, PIECE, false), (2, PIECE, true), (1, WHOLE, true), (1, 3, true)] {
        let mut next = first.clone();
        next[HEADER_BYTES + 4] = kind;
        next[HEADER_BYTES + 5] = part;
        next[24..32].copy_from_slice(&2_u64.to_le_bytes());
        let checksum = crc32c::crc32c(&next[12..]);
        next[8..12].copy_from_slice(&checksum.to_le_bytes());
        let (result, taken, _) = read(other, &[&first, &next]);
        assert_eq!(result.is_err(), fails, "kind {kind}, part {part}");
        assert!(taken.is_empty());
    }
}

#[test]
fn a_peer_that_says_it_has_taken_more_than_it_was_sent_is_no_danger() {
    let mut pair = Pair::new();
    pair.writer.peer_has_taken(u64::MAX);
    pair.say(1, b"x");
    pair.writer.end_turn(None);
    assert!(pair.write());
    assert_eq!(pair.sessions(), [1]);
}
