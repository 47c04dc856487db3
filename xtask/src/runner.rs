//! Runs phases side by side, two at a time, and reports them.
//!
//! Owns: the order of phases, their time limits, their log files below `target/check/` and the final table.
//! Never: knows what a phase does.
//!
//! A phase fails alone: the others go on unless they need it. Everything a phase's programs print goes to its log file;
//! the end of that file is shown when the phase fails.

use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::fs::{self, File};
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::process::{self, End};

/// How much of a failed phase's log is shown, in lines.
const TAIL_LINES: usize = 80;
/// How often a line says what is still running, so that a log that is watched does not look dead.
const HEARTBEAT: Duration = Duration::from_secs(60);

/// Phases that run at the same time: as many as the cores the check is planned for.
const WORKERS: usize = 2;

/// What a phase may run beside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// It compiles: cargo lets only one at a time into the target folder.
    Build,
    /// It only runs something already built, or needs no compiler: it may run beside any other.
    Run,
    /// It needs the machine for itself, and so comes when everything before it is done.
    Alone,
}

/// One part of the check.
#[derive(Debug, Clone)]
pub(crate) struct Phase {
    /// What `--only` takes.
    pub(crate) name: &'static str,
    /// What it proves, in a few words.
    pub(crate) about: &'static str,
    /// What it may run beside.
    pub(crate) lane: Lane,
    /// Phases that must have passed before this one starts.
    pub(crate) needs: &'static [&'static str],
    /// All its child processes together are killed after this many minutes.
    pub(crate) limit_minutes: u64,
    /// Does the work. Returns what to print beside the result, for example a count.
    pub(crate) run: fn(&Step<'_>) -> anyhow::Result<String>,
}

/// What a running phase works with.
pub(crate) struct Step<'a> {
    /// The workspace's folder.
    pub(crate) root: &'a Path,
    /// Where cargo puts what it builds.
    pub(crate) target: &'a Path,
    name: &'a str,
    deadline: Instant,
    log: File,
    notices: RefCell<Vec<String>>,
    skipped: Cell<bool>,
}

impl Step<'_> {
    /// Runs `command` with its output in the log.
    ///
    /// # Errors
    ///
    /// If it cannot be started, fails, or the phase's time is up.
    pub(crate) fn run(&self, command: &mut Command) -> anyhow::Result<()> {
        self.expect_success(command, self.log.try_clone()?)
    }

    /// Runs `command` and returns what it wrote to its standard output; the rest goes to the log.
    ///
    /// # Errors
    ///
    /// As [`Step::run`], and if the output is not UTF-8.
    pub(crate) fn capture(&self, command: &mut Command) -> anyhow::Result<String> {
        let path = self.output_path();
        self.expect_success(command, File::create(&path)?)?;
        fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))
    }

    /// Runs `command` with its output in the log; returns its status and both outputs.
    ///
    /// # Errors
    ///
    /// If it cannot be started or the phase's time is up; not if it fails.
    pub(crate) fn try_run(&self, command: &mut Command) -> anyhow::Result<(bool, String)> {
        let path = self.output_path();
        let output = File::create(&path)?;
        self.log(format_args!("$ {}", command_line(command)));
        command.stdout(output.try_clone()?).stderr(output);
        let end = process::run(command, self.deadline)?;
        let text = String::from_utf8_lossy(&fs::read(&path)?).into_owned();
        self.log(&text);
        match end {
            End::Exited(status) => Ok((status.success(), text)),
            End::TimedOut => bail!("time limit reached in `{}`", command_line(command)),
        }
    }

    /// Where [`Step::capture`] keeps what it read, until the phase's next program.
    pub(crate) fn output_path(&self) -> PathBuf {
        self.target.join("check").join(format!("{}.out", self.name))
    }

    fn expect_success(&self, command: &mut Command, stdout: File) -> anyhow::Result<()> {
        let line = command_line(command);
        self.log(format_args!("$ {line}"));
        command.stdout(stdout).stderr(self.log.try_clone()?);
        match process::run(command, self.deadline)? {
            End::Exited(status) if status.success() => Ok(()),
            End::Exited(status) => bail!("`{line}` failed with {status}"),
            End::TimedOut => bail!("time limit reached in `{line}`"),
        }
    }

    /// A line of the phase's log.
    pub(crate) fn log(&self, line: impl Display) {
        // A full disk shows itself in the phase; its log is not worth failing for.
        let _ = writeln!(&self.log, "{line}");
    }

    /// Ends a phase that cannot be done here and without which the check is still worth something. It is counted apart.
    ///
    /// # Errors
    ///
    /// None; the form is what a phase returns.
    pub(crate) fn skip(&self, reason: &str) -> anyhow::Result<String> {
        self.skipped.set(true);
        self.log(reason);
        Ok(reason.to_owned())
    }

    /// Something the reader of the summary must know although the phase passed: what part of it could not be checked
    /// here, what was installed.
    pub(crate) fn notice(&self, text: impl Into<String>) {
        let text = text.into();
        self.log(&text);
        self.notices.borrow_mut().push(text);
    }
}

fn command_line(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    std::iter::once(program).chain(command.get_args()).map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// How a phase ended.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    Passed(String),
    Failed(String),
    /// It cannot be done on this machine.
    Skipped(String),
    /// It needs a phase that failed; counts as failed.
    Blocked(&'static str),
}

#[derive(Debug, Clone)]
enum State {
    Waiting,
    Running(Instant),
    Done(Verdict, Duration),
}

struct Board {
    states: Vec<State>,
    notices: Vec<(&'static str, String)>,
}

/// Prints the table of phases.
pub(crate) fn list(phases: &[Phase]) {
    for phase in phases {
        let needs = if phase.needs.is_empty() { String::new() } else { format!(" (needs {})", phase.needs.join(", ")) };
        println!("{:<12} {}{needs}", phase.name, phase.about);
    }
}

/// Runs the phases named in `only` and what they need, or all if it is empty. Returns whether all passed.
///
/// # Errors
///
/// If a name is unknown or the folder for logs cannot be made.
pub(crate) fn run(root: &Path, phases: &[Phase], only: &[String]) -> anyhow::Result<bool> {
    let phases = select(phases, only)?;
    let target = target_folder(root);
    fs::create_dir_all(target.join("check")).context("failed to make the folder for logs")?;
    let started = Instant::now();
    let board = Mutex::new(Board { states: vec![State::Waiting; phases.len()], notices: Vec::new() });
    let changed = Condvar::new();
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(index) = take_next(&phases, &board, &changed) {
                    let (verdict, notices) = run_phase(&phases[index], root, &target);
                    finish(&phases, index, verdict, notices, &board, &changed);
                }
            });
        }
        scope.spawn(|| heartbeat(&phases, &board, &changed));
    });
    let board = board.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(summary(&phases, &board, started.elapsed()))
}

/// The folder cargo builds into.
pub(crate) fn target_folder(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |folder| root.join(folder))
}

fn select(phases: &[Phase], only: &[String]) -> anyhow::Result<Vec<Phase>> {
    let mut wanted: Vec<&str> = only.iter().map(String::as_str).collect();
    let mut next = 0;
    while let Some(&name) = wanted.get(next) {
        let Some(phase) = phases.iter().find(|phase| phase.name == name) else {
            bail!("no phase is called {name}; `cargo xtask test --list` prints them");
        };
        wanted.extend(phase.needs);
        next += 1;
    }
    Ok(phases.iter().filter(|phase| only.is_empty() || wanted.contains(&phase.name)).cloned().collect())
}

/// Waits for the first phase, in table order, whose needs have passed and whose lane is free, and marks it as running.
/// Phases whose needs did not pass are settled on the way. `None` when nothing is left to start.
fn take_next(phases: &[Phase], board: &Mutex<Board>, changed: &Condvar) -> Option<usize> {
    let mut guard = board.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        for (index, phase) in phases.iter().enumerate() {
            if !matches!(guard.states[index], State::Waiting) {
                continue;
            }
            match needs_of(phases, &guard.states, phase) {
                Needs::Met if is_free(phases, &guard.states, phase.lane) => {
                    guard.states[index] = State::Running(Instant::now());
                    println!("start   {}", phase.name);
                    return Some(index);
                }
                Needs::Met | Needs::Pending => {}
                Needs::Unmet(need) => {
                    guard.states[index] = State::Done(Verdict::Blocked(need), Duration::ZERO);
                    println!("not run {}: it needs {need}, which did not pass", phase.name);
                    changed.notify_all();
                }
            }
        }
        if !guard.states.iter().any(|state| matches!(state, State::Waiting)) {
            return None;
        }
        guard = changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Whether a phase of `lane` may start beside those that run.
fn is_free(phases: &[Phase], states: &[State], lane: Lane) -> bool {
    let mut running =
        phases.iter().zip(states).filter(|(_, state)| matches!(state, State::Running(_))).map(|(phase, _)| phase.lane);
    match lane {
        Lane::Alone => running.next().is_none(),
        Lane::Build => running.all(|other| other == Lane::Run),
        Lane::Run => running.all(|other| other != Lane::Alone),
    }
}

enum Needs {
    Met,
    Pending,
    Unmet(&'static str),
}

fn needs_of(phases: &[Phase], states: &[State], phase: &Phase) -> Needs {
    let mut pending = false;
    for &need in phase.needs {
        match phases.iter().position(|other| other.name == need).map(|index| &states[index]) {
            Some(State::Done(Verdict::Passed(_), _)) => {}
            Some(State::Waiting | State::Running(_)) => pending = true,
            Some(State::Done(..)) | None => return Needs::Unmet(need),
        }
    }
    if pending { Needs::Pending } else { Needs::Met }
}

fn run_phase(phase: &Phase, root: &Path, target: &Path) -> (Verdict, Vec<String>) {
    let path = log_path(target, phase.name);
    let log = match File::create(&path) {
        Ok(log) => log,
        Err(error) => return (Verdict::Failed(format!("failed to create {}: {error}", path.display())), Vec::new()),
    };
    let deadline = Instant::now() + Duration::from_secs(60 * phase.limit_minutes);
    let step =
        Step { root, target, name: phase.name, deadline, log, notices: RefCell::default(), skipped: Cell::new(false) };
    // A defect in one check must not take the others, or the summary, with it.
    let verdict = match catch_unwind(AssertUnwindSafe(|| (phase.run)(&step))) {
        Ok(Ok(reason)) if step.skipped.get() => Verdict::Skipped(reason),
        Ok(Ok(detail)) => Verdict::Passed(detail),
        Ok(Err(error)) => Verdict::Failed(format!("{error:#}")),
        Err(_) => Verdict::Failed("the phase panicked; see above".into()),
    };
    (verdict, step.notices.into_inner())
}

fn log_path(target: &Path, name: &str) -> PathBuf {
    target.join("check").join(format!("{name}.log"))
}

fn finish(
    phases: &[Phase],
    index: usize,
    verdict: Verdict,
    notices: Vec<String>,
    board: &Mutex<Board>,
    changed: &Condvar,
) {
    let name = phases[index].name;
    let mut board = board.lock().unwrap_or_else(PoisonError::into_inner);
    let State::Running(since) = board.states[index] else { unreachable!("only a running phase ends") };
    let took = since.elapsed();
    match &verdict {
        Verdict::Passed(detail) => println!("passed  {name} {} {detail}", seconds(took)),
        Verdict::Skipped(reason) => println!("skipped {name} {} {reason}", seconds(took)),
        Verdict::Failed(reason) => println!("FAILED  {name} {} {reason}", seconds(took)),
        Verdict::Blocked(_) => {}
    }
    board.states[index] = State::Done(verdict, took);
    board.notices.extend(notices.into_iter().map(|notice| (name, notice)));
    changed.notify_all();
}

fn heartbeat(phases: &[Phase], board: &Mutex<Board>, changed: &Condvar) {
    let mut last = Instant::now();
    let mut guard = board.lock().unwrap_or_else(PoisonError::into_inner);
    while guard.states.iter().any(|state| !matches!(state, State::Done(..))) {
        let wait = HEARTBEAT.saturating_sub(last.elapsed());
        guard = changed.wait_timeout(guard, wait).unwrap_or_else(PoisonError::into_inner).0;
        if last.elapsed() >= HEARTBEAT {
            last = Instant::now();
            let running: Vec<String> = phases
                .iter()
                .zip(&guard.states)
                .filter_map(|(phase, state)| match state {
                    State::Running(since) => Some(format!("{} {}", phase.name, seconds(since.elapsed()))),
                    _ => None,
                })
                .collect();
            println!("running {}", running.join(", "));
        }
    }
}

/// Prints the ends of the failed phases' logs, the table, the notices and the closing line.
fn summary(phases: &[Phase], board: &Board, took: Duration) -> bool {
    let target = target_folder(&crate::root());
    for (phase, state) in phases.iter().zip(&board.states) {
        if let State::Done(Verdict::Failed(reason), _) = state {
            let path = log_path(&target, phase.name);
            println!("\n--- {}: {reason}\n--- the end of {}:", phase.name, path.display());
            println!("{}", tail(&fs::read_to_string(&path).unwrap_or_default(), TAIL_LINES));
        }
    }
    println!("\n{:<8} {:<12} {:>9}  detail", "result", "phase", "time");
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for (phase, state) in phases.iter().zip(&board.states) {
        let (result, detail, time) = match state {
            State::Done(Verdict::Passed(detail), time) => ("passed", detail.clone(), *time),
            State::Done(Verdict::Skipped(reason), time) => ("skipped", reason.clone(), *time),
            State::Done(Verdict::Failed(reason), time) => ("FAILED", reason.lines().next().unwrap_or("").into(), *time),
            State::Done(Verdict::Blocked(need), time) => ("not run", format!("needs {need}"), *time),
            State::Waiting | State::Running(_) => ("not run", "the check stopped early".into(), Duration::ZERO),
        };
        match result {
            "passed" => passed += 1,
            "skipped" => skipped += 1,
            _ => failed += 1,
        }
        println!("{result:<8} {:<12} {:>9}  {detail}", phase.name, seconds(time));
    }
    if !board.notices.is_empty() {
        println!("\nTo know about this run:");
        for (name, notice) in &board.notices {
            println!("- {name}: {notice}");
        }
    }
    println!("\nphases took {} together", seconds(took));
    let skipped = if skipped == 0 { String::new() } else { format!(", {skipped} skipped") };
    println!("{passed} passed, {failed} failed{skipped}");
    failed == 0
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(name: &'static str, lane: Lane, needs: &'static [&'static str], passes: bool) -> Phase {
        let run: fn(&Step<'_>) -> anyhow::Result<String> =
            if passes { |_| Ok(String::new()) } else { |_| bail!("planted failure") };
        Phase { name, about: "", lane, needs, limit_minutes: 1, run }
    }

    fn verdicts(phases: &[Phase]) -> Vec<(&'static str, &'static str)> {
        let board = Mutex::new(Board { states: vec![State::Waiting; phases.len()], notices: Vec::new() });
        let changed = Condvar::new();
        thread::scope(|scope| {
            for _ in 0..WORKERS {
                scope.spawn(|| {
                    while let Some(index) = take_next(phases, &board, &changed) {
                        let folder = std::env::temp_dir();
                        let step = Step {
                            root: &folder,
                            target: &folder,
                            name: phases[index].name,
                            deadline: Instant::now(),
                            log: File::options().write(true).open("/dev/null").unwrap(),
                            notices: RefCell::default(),
                            skipped: Cell::new(false),
                        };
                        let verdict = match (phases[index].run)(&step) {
                            Ok(detail) => Verdict::Passed(detail),
                            Err(error) => Verdict::Failed(error.to_string()),
                        };
                        finish(phases, index, verdict, Vec::new(), &board, &changed);
                    }
                });
            }
        });
        let board = board.into_inner().unwrap();
        let word = |state: &State| match state {
            State::Done(Verdict::Passed(_), _) => "passed",
            State::Done(Verdict::Failed(_), _) => "failed",
            State::Done(Verdict::Skipped(_), _) => "skipped",
            State::Done(Verdict::Blocked(_), _) => "blocked",
            State::Waiting | State::Running(_) => "lost",
        };
        phases.iter().zip(&board.states).map(|(phase, state)| (phase.name, word(state))).collect()
    }

    #[test]
    fn a_failure_blocks_only_what_needs_it_directly_or_not() {
        let phases = [
            phase("a", Lane::Build, &[], false),
            phase("b", Lane::Run, &["a"], true),
            phase("c", Lane::Build, &["b"], true),
            phase("d", Lane::Run, &[], true),
            phase("e", Lane::Build, &["d"], true),
        ];
        let expected = [("a", "failed"), ("b", "blocked"), ("c", "blocked"), ("d", "passed"), ("e", "passed")];
        assert_eq!(verdicts(&phases), expected);
    }

    #[test]
    fn lanes_keep_apart_what_must_not_meet() {
        // One phase each way of being free; which of them run is written into the states.
        let phases =
            [Lane::Build, Lane::Run, Lane::Alone].map(|lane| Phase { lane, ..phase("a", Lane::Run, &[], true) });
        let check = |running: &[Lane], lane: Lane, expected: bool| {
            let states = phases
                .iter()
                .map(|phase| match running.contains(&phase.lane) {
                    true => State::Running(Instant::now()),
                    false => State::Waiting,
                })
                .collect::<Vec<_>>();
            assert_eq!(is_free(&phases, &states, lane), expected, "{lane:?} beside {running:?}");
        };
        for lane in [Lane::Build, Lane::Run, Lane::Alone] {
            check(&[], lane, true);
            check(&[Lane::Alone], lane, false);
        }
        check(&[Lane::Build], Lane::Build, false);
        check(&[Lane::Build], Lane::Run, true);
        check(&[Lane::Run], Lane::Build, true);
        check(&[Lane::Run], Lane::Run, true);
        check(&[Lane::Run], Lane::Alone, false);
    }

    #[test]
    fn only_brings_what_it_needs_and_refuses_unknown_names() {
        let phases = [
            phase("a", Lane::Build, &[], true),
            phase("b", Lane::Run, &["a"], true),
            phase("c", Lane::Run, &["b"], true),
            phase("d", Lane::Run, &[], true),
        ];
        let names = |only: &[&str]| {
            let only: Vec<String> = only.iter().map(ToString::to_string).collect();
            select(&phases, &only).map(|phases| phases.iter().map(|phase| phase.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&["c"]).unwrap(), ["a", "b", "c"]);
        assert_eq!(names(&[]).unwrap().len(), 4);
        assert!(names(&["x"]).unwrap_err().to_string().starts_with("no phase is called x"));
    }

    #[test]
    fn the_table_names_each_phase_once_and_needs_only_phases_it_has() {
        let table = crate::phases::table();
        for (index, phase) in table.iter().enumerate() {
            assert!(table[..index].iter().all(|other| other.name != phase.name), "{} stands twice", phase.name);
            for need in phase.needs {
                // Needed phases stand above: so no circle can make the workers wait for ever.
                assert!(table[..index].iter().any(|other| other.name == *need), "{} needs {need}", phase.name);
            }
        }
    }
}
