//! Row: a link breaks while both its processes live.

use std::time::{Duration, Instant};

use rustix::net::Shutdown;
use supervisor::Role;
use testing::process::wait_until;
use tubes_link::Link;

use crate::load::Load;
use crate::tree::{OWN_TUBES, PATIENT, Tree, put_into};
use crate::{Env, links};

/// Each way to break a link, one after the other on the same server.
pub(crate) fn link(env: &mut Env<'_>) -> String {
    let tree = Tree::start(env.executable, env.has_log, &PATIENT);
    let load = Load::begin(&tree, &mut env.rng);
    let mut seen = Vec::new();
    let mut ways = vec![
        "no more to the owner",
        "no more to the frontend",
        "corrupt length",
        "corrupt body",
        "a batch again",
        "noise",
    ];
    // Each break of a link is mended later than the one before, so not all in one run.
    while ways.len() > 4 {
        ways.swap_remove(env.rng.index(ways.len()));
    }
    for (round, way) in ways.iter().copied().enumerate() {
        // From both ends.
        let (near, far) = (tree.process(Role::Frontend, 0), tree.process(Role::Owner, 1));
        let socket = links::link(&near, &far);
        let (mut holder, mut bystander) = (tree.connect_to(0), tree.connect_to(0));
        let id = put_into(&mut holder, OWN_TUBES[1], "held");
        holder.check(format!("reserve-job {id}\r\n"), format!("RESERVED {id} 4\r\nheld\r\n"));
        let own = put_into(&mut bystander, OWN_TUBES[0], "own");
        bystander.check(format!("reserve-job {own}\r\n"), format!("RESERVED {own} 3\r\nown\r\n"));
        let name = Link { own_slot: 0, own_generation: 1, peer_slot: 1, peer_generation: 1 };
        let mut batch = links::frame(name, &format!("delete {id}"));
        let begin = Instant::now();
        let written = match way {
            "no more to the owner" => rustix::net::shutdown(&socket, Shutdown::Write),
            "no more to the frontend" => rustix::net::shutdown(&socket, Shutdown::Read),
            "corrupt length" => {
                batch[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
                links::write(&socket, &batch)
            }
            "corrupt body" => {
                let last = batch.len() - 1;
                batch[last] ^= 1;
                links::write(&socket, &batch)
            }
            // Valid, but number 1 was sent long ago.
            "a batch again" => links::write(&socket, &batch),
            _ => links::write(&socket, &[0x5a; 100]),
        };
        written.unwrap_or_else(|error| panic!("{way}: {error}"));
        // What depended on it is closed, and nothing else.
        holder.expect_end();
        let closed = begin.elapsed();
        wait_until("the supervisor knows", || tree.server.stderr().matches("is broken").count() > round);
        let mut again = tree.connect_to(0);
        again.check(format!("reserve-job {id}\r\n"), format!("RESERVED {id} 4\r\nheld\r\n"));
        let mended = begin.elapsed();
        again.check(format!("delete {id}\r\n"), "DELETED\r\n");
        bystander.check(format!("touch {own}\r\ndelete {own}\r\n"), "TOUCHED\r\nDELETED\r\n");
        assert!(mended <= Duration::from_secs(60), "{way}: mended after {mended:?}");
        seen.push(format!("{way}: closed {closed:.0?}, mended {mended:.0?}"));
        load.wait_for_more(20);
    }
    assert_eq!(tree.generations(), [1; 4], "no process was started again: {}", tree.server.stderr());
    let broken = tree.server.stderr().matches("is broken").count();
    assert_eq!(broken, ways.len(), "each break counts once: {}", tree.server.stderr());
    let counts = load.judge(&tree);
    format!("{}; {counts}", seen.join(", "))
}
