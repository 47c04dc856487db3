//! The checker is fed forged histories, each with one violation planted: all must be caught, and the true one passes.

use super::*;

/// Members and a run's number, as the log has them.
const A: &str = "000000000000000000000000000000aa";
const B: &str = "000000000000000000000000000000bb";
const LANE: &str = "lane west";
const SECOND: i64 = 1_000_000;

const RULES: Rules =
    Rules { stale_max: Duration::from_secs(2), late_max: Duration::ZERO, may_lose: false, epoch_min: None };

/// A history in the making. The log's clock goes on by 10 ms a row.
#[derive(Default)]
struct Forge(History);

impl Forge {
    fn row(&mut self, kind: &str, member: &str, subject: &str, number: i64, extra: &str) -> &mut Self {
        let no = self.0.log.len() as i64 + 1;
        let [kind, member, subject, extra] = [kind, member, subject, extra].map(str::to_owned);
        self.0.log.push(Entry { no, at_us: SECOND + no * 10_000, kind, member, subject, number, extra });
        self
    }

    /// A line of the process `name`, so many ms after the log's beginning.
    fn line(&mut self, name: &str, at_ms: i64, text: &str) -> &mut Self {
        let mut words = text.split(' ').map(str::to_owned);
        let line =
            Line { boot_us: 1, wall_us: SECOND + at_ms * 1_000, kind: words.next().unwrap(), words: words.collect() };
        match self.0.processes.iter_mut().find(|(other, _)| other == name) {
            Some((_, lines)) => lines.push(line),
            None => self.0.processes.push((name.to_owned(), vec![line])),
        }
        self
    }

    fn violations(&self, rules: Rules) -> Vec<String> {
        check(&self.0, rules).err().unwrap_or_default()
    }
}

/// A claims and finishes 1 in a lane, claims 2 and dies; B takes over, leads and finishes 2; a run goes on meanwhile.
fn truth() -> Forge {
    let mut forge = Forge::default();
    forge
        .row("leader", A, "scheduler", 1, "") // 1
        .row("epoch", A, "scheduler", 1, "") // 2
        .row("claim", A, "1", 1, "") // 3
        .row("ticket", A, LANE, 1, "member") // 4
        .row("finish", A, "1", 1, LANE) // 5
        .row("ticket", A, LANE, -1, "member") // 6
        .row("run_start", A, "7", 0, "") // 7
        .row("ticket", "7", "permit runs", 1, "run") // 8
        .row("claim", A, "2", 1, "") // 9
        .row("ticket", A, LANE, 1, "member") // 10
        .row("append", A, "b-1", 4, "") // 11
        .row("set", A, "colour", 1, "") // 12
        .row("given_up", "", "2", 1, "") // 13
        .row("ticket", A, LANE, -1, "member") // 14
        .row("leader", "", "scheduler", 1, "") // 15
        .row("gone", A, "", 1, "") // 16
        .row("leader", B, "scheduler", 2, "") // 17
        .row("epoch", B, "scheduler", 2, "") // 18
        .row("claim", B, "2", 2, "") // 19
        .row("ticket", B, LANE, 1, "member") // 20
        .row("finish", B, "2", 2, LANE) // 21
        .row("ticket", B, LANE, -1, "member") // 22
        .row("run_end", B, "7", 0, "") // 23
        .row("ticket", "7", "permit runs", -1, "run") // 24
        .line("a", 5, &format!("leader scheduler 1 Gained {A}"))
        .line("a", 35, &format!("effect {A} 1 1"))
        .line("a", 100, &format!("effect {A} 2 1"))
        .line("a", 110, &format!("fenced {A}"))
        .line("b", 130, "answered b-1 b-1")
        .line("b", 150, "read colour 0")
        .line("b", 180, &format!("leader scheduler 2 Gained {B}"))
        .line("b", 205, &format!("effect {B} 2 2"))
        .line("b", 4_000, "read colour 1");
    forge
}

/// What a forged history is made by, and what must be said of it.
type Forgery = (&'static str, fn(&mut Forge));

const FORGERIES: &[Forgery] = &[
    ("finished attempt 2 of 2, but Some(Finished", |forge| {
        forge.row("finish", B, "2", 2, "");
    }),
    ("finish by 000000000000000000000000000000aa, whose registration had ended", |forge| {
        forge.row("finish", A, "2", 1, "");
    }),
    ("claim by 000000000000000000000000000000aa, whose registration had ended", |forge| {
        forge.row("claim", A, "3", 1, "");
    }),
    ("claimed 2, but Finished", |forge| {
        forge.row("claim", B, "2", 3, "");
    }),
    ("claimed 8, but Running", |forge| {
        forge.row("claim", B, "8", 1, "").row("claim", B, "8", 2, "");
    }),
    ("attempt 5 of 9, expected 1", |forge| {
        forge.row("claim", B, "9", 5, "");
    }),
    ("was given up, and did not run", |forge| {
        forge.row("given_up", "", "1", 1, "");
    }),
    ("registered again after its end", |forge| {
        forge.row("gone", A, "", 1, "");
    }),
    ("in epoch 1, but Some(Led { epoch: 2", |forge| {
        forge.row("epoch", B, "scheduler", 1, "");
    }),
    ("an effect of 000000000000000000000000000000cc as scheduler in epoch 2", |forge| {
        forge.row("epoch", "000000000000000000000000000000cc", "scheduler", 2, "");
    }),
    ("epoch 1 of scheduler came after 2", |forge| {
        forge.row("leader", B, "scheduler", 1, "");
    }),
    ("in epoch 2, which was given before", |forge| {
        forge.row("leader", "000000000000000000000000000000cc", "scheduler", 2, "");
    }),
    ("became scheduler after its end", |forge| {
        forge.row("leader", A, "scheduler", 3, "");
    }),
    ("2 tickets of lane west are out, 1 may be", |forge| {
        forge.row("ticket", B, LANE, 1, "member").row("ticket", "7", LANE, 1, "run");
    }),
    ("4 tickets of permit runs are out, 3 may be", |forge| {
        for run in ["11", "12", "13", "14"] {
            forge.row("run_start", B, run, 0, "").row("ticket", run, "permit runs", 1, "run");
        }
    }),
    ("got a second ticket", |forge| {
        forge.row("ticket", B, "permit p", 1, "member").row("ticket", B, "permit p", 1, "member");
    }),
    ("that it had not", |forge| {
        forge.row("ticket", B, LANE, -1, "member");
    }),
    ("was given to 000000000000000000000000000000aa after its end", |forge| {
        forge.row("ticket", A, LANE, 1, "member");
    }),
    ("run 15 lost its ticket of permit runs before its end", |forge| {
        forge.row("run_start", B, "15", 0, "").row("ticket", "15", "permit runs", 1, "run").row(
            "ticket",
            "15",
            "permit runs",
            -1,
            "run",
        );
    }),
    ("finished 16 without its ticket of lane west", |forge| {
        forge.row("claim", B, "16", 1, "").row("finish", B, "16", 1, LANE);
    }),
    ("run 7 ended, and did not run", |forge| {
        forge.row("run_end", B, "7", 0, "");
    }),
    ("the request b-1 was carried out twice", |forge| {
        forge.row("append", B, "b-1", 4, "");
    }),
    ("the request b-2 was answered, and not carried out", |forge| {
        forge.line("b", 4_000, "answered b-2 b-2");
    }),
    ("the value after 1 is 3", |forge| {
        forge.row("set", B, "colour", 3, "");
    }),
    ("used 0 3880 ms after it was changed", |forge| {
        forge.line("a", 4_000, "read colour 0");
    }),
    ("an effect of 000000000000000000000000000000aa 140 ms after its end", |forge| {
        forge.line("c", 300, &format!("effect {A} 1 1"));
    }),
    ("after its executions were stopped", |forge| {
        forge.line("a", 120, &format!("effect {A} 2 1"));
    }),
    ("on attempt 1 of 2 20 ms after it was taken", |forge| {
        forge.line("c", 150, &format!("effect {A} 2 1"));
    }),
    ("worked on attempt 1 of 2, claimed by", |forge| {
        forge.line("b", 110, &format!("effect {B} 2 1"));
    }),
    ("epoch 2 of scheduler was gained by two members", |forge| {
        forge.line("a", 4_000, &format!("leader scheduler 2 Gained {A}"));
    }),
];

#[test]
fn a_true_history_passes_and_is_counted() {
    let counts = check(&truth().0, RULES).unwrap_or_else(|violations| panic!("{violations:#?}"));
    let expected = Counts {
        claims: 3,
        finishes: 2,
        given_up: 1,
        gone: 1,
        takeovers: 2,
        leader_effects: 2,
        effects: 3,
        tickets: 4,
        runs: 1,
        requests: 1,
        reads: 2,
    };
    assert_eq!(counts, expected);
}

#[test]
fn each_forged_history_is_refused_for_what_is_wrong_with_it() {
    for (expected, plant) in FORGERIES {
        let mut forge = truth();
        plant(&mut forge);
        let violations = forge.violations(RULES);
        assert!(violations.iter().any(|what| what.contains(expected)), "{expected}: {violations:#?}");
    }
}

#[test]
fn after_a_failover_epochs_stand_above_those_that_the_lost_server_gave() {
    let mut forge = truth();
    forge.row("leader", B, "scheduler", 3, "");
    assert_eq!(forge.violations(RULES), Vec::<String>::new());
    let rules = Rules { epoch_min: Some((SECOND + 245_000, 2 << 32)), ..RULES };
    let violations = forge.violations(rules);
    assert!(violations.len() == 1 && violations[0].contains("after the failover"), "{violations:?}");
}

#[test]
fn what_a_promoted_replica_has_lost_is_not_held_against_members() {
    let mut forge = truth();
    forge.line("b", 4_000, &format!("effect {B} 77 1")).line("b", 4_000, "answered b-9 b-9");
    assert_eq!(forge.violations(RULES).len(), 2);
    assert_eq!(forge.violations(Rules { may_lose: true, ..RULES }), Vec::<String>::new());
}
