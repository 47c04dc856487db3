//! The simulated database does what a real PostgreSQL does, in every order in which the sessions of each case can meet.

use testing::cluster_sim::SimulatedBench;
use testing::interleave::postgres::PostgresBench;
use testing::interleave::{cases, compare};

/// Two wait for the same row: which of them goes on first, the real database does not promise.
const UNDECIDED: &str = "three_of_two_tickets";
/// Orders of all cases together, or the comparison proves little.
const ORDERS_MIN: usize = 200;

#[test]
fn the_simulated_database_does_what_the_real_one_does_in_every_order() {
    let mut real = PostgresBench::new();
    let mut simulated = SimulatedBench::default();
    let mut orders = 0;
    let mut differences = Vec::new();
    for (name, case) in cases::ALL.iter().filter(|(name, _)| *name != UNDECIDED) {
        match compare(&mut real, &mut simulated, &case()) {
            Ok(count) => orders += count,
            Err(difference) => differences.push(format!("{name}: {difference}")),
        }
    }
    println!("{orders} orders");
    assert!(differences.is_empty(), "{} cases differ:\n{}", differences.len(), differences.join("\n"));
    assert!(orders >= ORDERS_MIN, "only {orders} orders");
}
