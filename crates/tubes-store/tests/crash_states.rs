//! GT1, GT2, GT4, row "WAL crash states": every call of many scripts is a crash point, by power loss and by kill.

mod common;

use common::world::World;
use tubes_store::SyncMode;

const MODES: [SyncMode; 3] = [SyncMode::Always, SyncMode::Interval(50_000_000), SyncMode::Never];
const SCRIPTS: u64 = 306;
const TURNS: u64 = 30;

/// Runs a script until the disk stops or the script ends.
fn run(world: &mut World) {
    match world.open() {
        Ok(true) => {}
        Ok(false) => return,
        Err(error) => panic!("seed {}: {error}", world.seed),
    }
    for _ in 0..TURNS {
        if !world.turn() {
            return;
        }
    }
}

#[test]
fn whatever_the_crash_point_what_was_promised_is_there_and_a_second_recovery_changes_nothing() {
    let (mut crash_points, mut torn, mut refused) = (0_u64, 0_u64, 0_u64);
    for script in 0..SCRIPTS {
        let sync = MODES[(script % 3) as usize];
        let calls = {
            let mut world = World::new(script, sync);
            run(&mut world);
            world.disk.calls()
        };
        assert!(calls > 10);
        for call in 1..=calls {
            for power_loss in [false, true] {
                let mut world = World::new(script, sync);
                world.disk.stop_at_call(call);
                run(&mut world);
                crash_points += 1;
                let seed = script * 1_000_003 + call;
                match world.crash_and_check(power_loss, seed) {
                    Some(report) => torn += u64::from(report.torn.is_some()),
                    None => {
                        refused += 1;
                        continue;
                    }
                }
                // The next life, which may end in the middle of its start.
                world.disk.stop_at_call(world.disk.calls() + 1 + seed % 40);
                run(&mut world);
                world.crash_and_check(seed.is_multiple_of(3) && sync != SyncMode::Never, seed + 1);
            }
        }
    }
    println!("{SCRIPTS} scripts, {crash_points} crash points, {torn} torn tails, {refused} refused in mode never");
    assert!(crash_points >= 2 * SCRIPTS * 20, "only {crash_points} crash points");
    assert!(torn > 100, "only {torn} torn tails: the disk is too kind");
}

#[test]
fn on_a_full_disk_crashes_lose_nothing_either() {
    let mut crash_points = 0;
    for script in 0..60 {
        let sync = MODES[(script % 3) as usize];
        for call in (1..400).step_by(7) {
            let mut world = World::new(10_000 + script, sync);
            world.limit_space(4 + script % 8);
            world.disk.stop_at_call(call);
            run(&mut world);
            let power_loss = call % 2 == 0;
            crash_points += 1;
            world.crash_and_check(power_loss, call);
        }
    }
    assert!(crash_points > 3_000);
}

#[test]
fn a_write_that_was_lost_is_noticed_once_the_next_batch_is_there() {
    let (mut refused, mut whole) = (0, 0);
    for script in 0..1_500 {
        let mut world = World::new(20_000 + script, SyncMode::Always);
        world.lose_write(2 + script % 25);
        assert!(world.open().unwrap());
        for _ in 0..TURNS {
            assert!(world.turn());
        }
        match world.crash_and_check(false, script) {
            Some(_) => whole += 1,
            None => refused += 1,
        }
    }
    println!("{refused} refused, {whole} without a lost write or with the last one lost");
    assert!(refused > 100 && whole > 100);
}
