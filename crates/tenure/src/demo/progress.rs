//! What a user sees while the demo runs: bars on a terminal, plain lines otherwise.

use crate::output::say;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;

/// Progress of puts and of finished jobs.
pub(crate) struct Bars {
    put: ProgressBar,
    done: ProgressBar,
    _both: indicatif::MultiProgress,
    jobs: u64,
    is_terminal: bool,
    last_line: std::cell::Cell<u64>,
}

impl Bars {
    pub(crate) fn new(jobs: u64) -> Self {
        let both = indicatif::MultiProgress::new();
        let style = ProgressStyle::with_template("{msg:5} {wide_bar} {pos}/{len} {per_sec}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = |name: &'static str| {
            let bar = both.add(ProgressBar::new(jobs).with_style(style.clone()));
            bar.set_message(name);
            bar
        };
        let (put, done) = (bar("put"), bar("done"));
        Bars { put, done, _both: both, jobs, is_terminal: std::io::stderr().is_terminal(), last_line: 0.into() }
    }

    pub(crate) fn show(&self, put: u64, done: u64) {
        self.put.set_position(put);
        self.done.set_position(done);
        let tenth = done * 10 / self.jobs;
        if !self.is_terminal && tenth > self.last_line.get() {
            self.last_line.set(tenth);
            say!("{put} put, {done} of {} done", self.jobs);
        }
    }

    pub(crate) fn note(&self, text: &str) {
        if self.is_terminal {
            self.done.suspend(|| say!("{text}"));
        } else {
            say!("{text}");
        }
    }

    pub(crate) fn finish(&self) {
        self.put.finish();
        self.done.finish();
    }
}
