//! The demo does what it says, at a small size.

use std::process::{Command, Output};

fn demo(flags: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tenure")).args(["demo", "--seed", "7"]).args(flags).output().expect("it runs")
}

#[test]
fn both_parts_kill_and_lose_nothing() {
    let output = demo(&["--jobs", "1500", "--kills", "1", "--owners", "1", "--frontends", "2", "--process-kills", "4"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(said.matches("Every acknowledged job came out exactly as promised.").count(), 2, "{said}");
    assert_eq!(said.matches("killed the server after ").count(), 1, "{said}");
    assert_eq!(said.lines().filter(|line| line.contains(" jobs killed ") && line.contains("was ready")).count(), 4);
    assert!(said.contains("1 owners have the jobs, 2 frontends the connections"), "{said}");
    assert!(said.contains("limits of its own: --restart-limit "), "{said}");
}

#[test]
fn without_kills_of_processes_the_second_part_is_left_out() {
    let output = demo(&["--jobs", "1000", "--kills", "0", "--process-kills", "0"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(said.matches("Every acknowledged job came out exactly as promised.").count(), 1, "{said}");
    assert!(!said.contains("owners"), "{said}");
}
